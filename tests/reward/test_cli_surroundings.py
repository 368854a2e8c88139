"""The commands where they are used: terminals, pipes, full disks, interrupts, and URLs that lead elsewhere."""

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from threading import Thread

import pytest
from tests.reward.plugins_only import COMMAND, PLAIN

from grpo_reward.__main__ import main

pytestmark = pytest.mark.processes

PATIENCE_S = 60.0

PLUGIN = """
import time
from grpo_reward import reward

@reward
def red(completion: str) -> float:
    raise ValueError("\\x1b[31mred\\nsecond line")

@reward
def slow(completion: str) -> float:
    with open(__file__ + ".calls", "a") as calls:
        calls.write("x")
    time.sleep(0.05)
    return 1.0
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("plugin") / "cli_surroundings_plugin.py"
    path.write_text(PLUGIN)
    return str(path)


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    lines = [
        {"completion": f"c {n}", "id": f"\x1b[31m {n}", "nums": [1], "target": 1, "total": 0.5} for n in range(500)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def shell(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`command` with `run` for grpo-reward, which has the rewards of plugins alone, and the arguments as $1, $2, …"""
    script = f'run() {{ {shlex.join(COMMAND)} "$@"; }}\n{command}'
    return subprocess.run(
        ["bash", "-c", script, "bash", *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


@pytest.mark.faults
@pytest.mark.parametrize(
    "command", ["list", "list --json", "score $1 --rewards plain", "score $1 --rewards plain --json"]
)
def test_a_full_disk_is_one_line(command, rows):
    ended = shell(f"run {command} --plugin $2 > /dev/full", rows, PLAIN)
    assert (ended.returncode, ended.stderr) == (1, "error: the output cannot be written: No space left on device\n")


@pytest.mark.faults
def test_scores_that_cannot_be_kept_are_shown_all_the_same(rows):
    ended = shell("run score $1 --rewards plain --plugin $2 --out /dev/full", rows, PLAIN)
    assert (ended.returncode, ended.stderr) == (1, "error: /dev/full cannot be written: No space left on device\n")
    assert "500 samples" in ended.stdout


@pytest.mark.faults
@pytest.mark.parametrize("command", ["--help", "list", "list --json", "score --help"])
def test_a_reader_that_leaves_is_no_error(command):
    ended = shell(f"run {command} | true")
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(closed):
    ended = shell(f"run list --plugin $1 {closed}", PLAIN)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ("plain (plugin)" in ended.stdout) == (">&-" not in closed.replace("2>&-", ""))


def test_what_a_reward_says_does_not_steer_the_terminal(plugin, rows):
    ended = shell("run score $1 --rewards red --plugin $2 --top 3", rows, plugin)
    assert ended.returncode == 1
    assert "\x1b" not in ended.stdout + ended.stderr
    assert ended.stderr.endswith("error: ValueError: \\x1b[31mred\\nsecond line (cli_surroundings_plugin.py, line 7)\n")
    ended = shell("run score $1 --rewards plain --plugin $2 --top 3", rows, PLAIN)
    assert "\\x1b[31m 0" in ended.stdout
    assert "\x1b" not in ended.stdout


def test_what_a_plugin_says_at_its_import_does_not_steer_the_terminal(tmp_path):
    path = tmp_path / "cli_red_plugin.py"
    path.write_text("raise ValueError('\x1b[31mred')\n")
    ended = shell("run list --plugin $1", str(path))
    assert ended.returncode == 1
    assert "\\x1b[31mred" in ended.stderr
    assert "\x1b" not in ended.stderr


def test_a_narrow_terminal_shows_every_number(rows):
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "score", rows, "--rewards", "plain", "--plugin", PLAIN, "--top", "0"],
        stdout=theirs, env={**os.environ, "COLUMNS": "40", "TERM": "dumb"},
    ) as process:  # fmt: skip
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 65_536):
                shown += piece
        except OSError:  # nobody has the other end any more
            pass
        os.close(ours)
    assert process.returncode == 0
    for word in ("reward", "weight", "unscorable", "timeout", "seconds", "plain", "rank correlation"):
        assert word in shown.decode()
    assert "…" not in shown.decode()


class _Page(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def website(tmp_path: Path) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), lambda *arguments: _Page(*arguments, directory=str(tmp_path))) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("page", [None, "<html>Welcome</html>", "{}"])
def test_a_website_is_no_reward_server(website, tmp_path, capsys, page):
    if page is not None:
        (tmp_path / "info").write_text(page)
    with pytest.raises(SystemExit) as ended:
        main(["list", "--url", website])
    err = capsys.readouterr().err
    assert ended.value.code == 1
    assert err.startswith(f"error: {website}: ")
    assert "is a grpo-services server" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("url", ["http://", "http://[::1", "http://127.0.0.1:99999", "http://:8001", "http://h:port"])
def test_what_is_no_url_is_wrong_usage(capsys, url):
    with pytest.raises(SystemExit) as ended:
        main(["list", "--url", url])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert err.startswith(f"error: --url: '{url}' is no URL")
    assert err.count("\n") == 1


@pytest.mark.faults
def test_an_interrupt_keeps_what_was_scored(plugin, rows, tmp_path):
    kept = tmp_path / "kept.jsonl"
    arguments = ["score", rows, "--rewards", "slow", "--plugin", plugin, "--workers", "2", "--out", str(kept)]
    # A group of its own, as a shell makes one: Ctrl-C goes to all of it. Tests in the background of a shell ignore it.
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        calls, until_s = Path(f"{plugin}.calls"), time.monotonic() + PATIENCE_S
        while not (calls.exists() and calls.stat().st_size > 100) and time.monotonic() < until_s:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, "")
    scored = len(kept.read_text().splitlines())
    assert 0 < scored < 500
    assert err == f"{scored} of 500 samples were scored; they are in {kept}\n"
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.parametrize("arguments", [["list"], ["score", "-", "--rewards", "format"], ["serve", "--port", "0"]])
def test_an_interrupt_during_the_imports_shows_no_traceback(arguments):
    program = """
import sys

class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == "grpo_reward.config":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
from grpo_reward.__main__ import main

main(sys.argv[1:])
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
