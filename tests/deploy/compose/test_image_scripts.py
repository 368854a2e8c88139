"""The small programs inside the images, run as the images run them."""

import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import takewhile
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

DOCKER = Path(__file__).resolve().parents[3] / "docker"


@contextmanager
def server(status: int) -> Iterator[int]:
    """Something that answers /livez with `status` and everything else with 404. Yields the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/livez" else 404)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.02,))
        thread.start()
        yield http.server_port
        http.shutdown()
        thread.join()


def start(*command: object, **environment: str) -> "subprocess.Popen[str]":
    variables = {**os.environ, **environment}
    words = [str(word) for word in command]
    return subprocess.Popen(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables)


def ended(process: "subprocess.Popen[str]") -> subprocess.CompletedProcess[str]:
    with process:
        try:
            out, error = process.communicate(timeout=60)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


def call(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return ended(start(*command, **environment))


@pytest.mark.parametrize(("status", "expected"), [(200, 0), (503, 1), (404, 1)])
def test_the_health_check_is_the_status_of_livez(status: int, expected: int) -> None:
    with server(status) as port:
        result = call(sys.executable, "-I", DOCKER / "healthcheck.py", port)
    assert result.returncode == expected
    assert str(status) in result.stdout


def test_the_health_check_of_nobody_says_so() -> None:
    with server(200) as port:
        pass
    result = call(sys.executable, "-I", DOCKER / "healthcheck.py", port)
    assert result.returncode == 1
    assert "refused" in result.stdout
    assert result.stderr == ""


# As PID 1 of a container with `init: true`: ends with its child, and with the child's status as a shell tells it.
INIT = f"""#!{sys.executable}
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
sys.exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status := os.waitpid(pid, 0)[1]) else 0)
"""
# A server that gives one status after the other, and looks at itself as Docker would.
SERVER = """
import http.server, subprocess, sys, threading, time
statuses = list(map(int, sys.argv[2:]))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        status = statuses.pop(0)
        if not status:
            time.sleep(15)
        self.send_response(status)
        self.end_headers()
    def log_message(self, *words):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
for _ in sys.argv[2:]:
    subprocess.run([sys.executable, "-I", sys.argv[1], str(server.server_port), "--end-when-stuck"], timeout=30)
print("still there")
"""


CASES: list[tuple[str, str, list[int], str | None]] = [
    ("docker-init", "", [200, 503, 503, 503], "503, 3 times"),
    ("docker-init", "", [503, 503, 200, 503, 503, 404, 503, 503], None),
    ("bash", "", [503, 503, 503, 503], None),
    ("docker-init", "no answer 29", [0], "no answer, 30 times"),
    ("docker-init", "no answer 28", [0], None),
    ("docker-init", "no answer 29", [200, 0], None),
    ("docker-init", "no answer 29", [503], None),
    ("docker-init", "of an older version", [503, 503], None),
]
"""The first process, what the check counted before, what the server answers (0: nothing), and what is then said."""
NAMESPACES = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> list[subprocess.CompletedProcess[str]]:
    """What became of each case. They run at once: the checks that get no answer wait for it beside each other."""
    if call(*NAMESPACES, "true").returncode:
        pytest.skip("this kernel gives an ordinary user no namespaces")
    running = []
    for init, before, statuses, _ in CASES:
        folder = tmp_path_factory.mktemp("container")
        (folder / init).write_text(INIT)
        (folder / init).chmod(0o755)
        if before:
            (folder / "grpo-livez").write_text(before)
        words = [*NAMESPACES, folder / init, sys.executable, "-c", SERVER, DOCKER / "healthcheck.py", *statuses]
        running.append(start(*words, TMPDIR=str(folder)))
    return [ended(process) for process in running]


@pytest.mark.parametrize("case", range(len(CASES)), ids=[f"{' '.join(case[:2])} {case[2]}" for case in CASES])
def test_a_server_that_is_stuck_or_silent_for_long_is_killed(
    looked_at: list[subprocess.CompletedProcess[str]], case: int
) -> None:
    result, ends = looked_at[case], CASES[case][-1]
    assert (result.returncode, "still there" in result.stdout) == ((137, False) if ends else (0, True)), result
    told = f"error: /livez: {ends}: the health check kills this server\n" if ends else ""
    assert result.stderr == told


def test_a_secret_file_becomes_a_variable(tmp_path: Path) -> None:
    (tmp_path / "grpo_api_token").write_text("s3cret $HOME `id`\n")
    (tmp_path / "empty").write_text("")
    (tmp_path / "hf_token").write_text("from the file")
    result = call(DOCKER / "entrypoint.sh", "env", GRPO_SECRETS_DIR=str(tmp_path), HF_TOKEN="was set")
    lines = result.stdout.splitlines()
    assert "GRPO_API_TOKEN=s3cret $HOME `id`" in lines
    assert "HF_TOKEN=was set" in lines
    assert not [line for line in lines if line.startswith("EMPTY=")]


def test_without_secrets_and_with_odd_names_the_command_runs(tmp_path: Path) -> None:
    (tmp_path / "a;touch b").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "1st").write_text("x")
    result = call(DOCKER / "entrypoint.sh", "sh", "-c", "exit 7", GRPO_SECRETS_DIR=str(tmp_path))
    assert (result.returncode, result.stderr) == (7, "")
    assert call(DOCKER / "entrypoint.sh", "true", GRPO_SECRETS_DIR=str(tmp_path / "none")).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop to another user")
def test_a_secret_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    secret = tmp_path / "grpo_api_token"
    secret.write_text("x")
    secret.chmod(0o600)
    everybodys = Path(tempfile.gettempdir())
    for folder in takewhile(lambda folder: folder != everybodys, (tmp_path, *tmp_path.parents)):  # pytest's own
        folder.chmod(0o755)
    result = subprocess.run(
        ["sh", str(DOCKER / "entrypoint.sh"), "true"],
        text=True, capture_output=True, user=10001, env={"GRPO_SECRETS_DIR": str(tmp_path), "PATH": os.environ["PATH"]},
        check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert f"{secret} cannot be read by user 10001" in result.stderr
    assert "chmod" in result.stderr


def test_the_bill_of_materials_names_every_distribution_once() -> None:
    result = subprocess.run(
        [sys.executable, "-"], input=(DOCKER / "sbom.py").read_text(), text=True, capture_output=True, check=True
    )
    document = json.loads(result.stdout)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    names = [part["name"] for part in document["components"] if part["purl"].startswith("pkg:pypi/")]
    assert {"grpo-reward", "torch", "pydantic"} <= set(names)
    references = [part["bom-ref"] for part in document["components"]]
    assert len(set(references)) == len(references)


RUN_FILE = """
run_dir: {folder}/run
model: {{name_or_path: "{folder}/model"}}
data: {{dataset: "{folder}/data.jsonl"}}
reward: {{reward_funcs: [format]}}
"""


def test_prepare_looks_for_a_folder_and_counts_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare() -> tuple[int, str, str]:
        """In this process, which need not import the trainer three times."""
        monkeypatch.setattr(sys, "argv", ["prepare.py", str(tmp_path / "run.yaml")])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(DOCKER / "prepare.py"), run_name="__main__")
        return int(ended.value.code or 0), *capsys.readouterr()

    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    (tmp_path / "data.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    (tmp_path / "run.yaml").write_text(RUN_FILE.format(folder=tmp_path))
    assert prepare() == (0, f"data {tmp_path}/data.jsonl: 2 rows\n", "")
    with monkeypatch.context() as other:
        other.setenv("GRPO_TRAIN__DATA__DATASET", f"{tmp_path}/dat.jsonl")
        status, _, error = prepare()
    assert status == 2
    assert "did you mean" in error
    (tmp_path / "model/config.json").unlink()
    status, _, error = prepare()
    assert status == 2
    assert "no config.json" in error


def test_prepare_without_a_network_says_what_it_wanted(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN_FILE.format(folder=tmp_path).replace(f"{tmp_path}/model", "nobody/nothing"))
    result = call(
        sys.executable, DOCKER / "prepare.py", tmp_path / "run.yaml", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path)
    )
    assert result.returncode == 3
    assert "model nobody/nothing cannot be downloaded" in result.stderr
    assert "HF_TOKEN_FILE" in result.stderr

    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    result = call(
        sys.executable, DOCKER / "prepare.py", tmp_path / "run.yaml", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path),
        GRPO_TRAIN__MODEL__NAME_OR_PATH=f"{tmp_path}/model", GRPO_TRAIN__DATA__DATASET="nobody/no-rows",
    )  # fmt: skip
    assert result.returncode == 3
    assert result.stderr.startswith("error: ")
    assert "nobody/no-rows" in result.stderr
    assert "Traceback" not in result.stderr
