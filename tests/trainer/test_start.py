"""The first seconds of a run: it can be asked how it is, waits for servers in the open, and ends with a status that
says whether another try can help."""

import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import yaml
from pydantic import ValidationError
from tests.processes import BIN, free_port
from tests.trainer.made_run_file import write_run_file
from transformers import AutoConfig, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from grpo_proto import PROTOCOL_VERSION, RewardDescription, RolloutInfo, WeightState
from grpo_proto.fingerprint import tokenizer_fingerprint
from grpo_trainer import __main__
from grpo_trainer.checkpoint.run_folder import make_run_folder
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.config.settings import read_config
from grpo_trainer.config.weights import WeightsConfig
from grpo_trainer.data.prompts import text_or_file
from grpo_trainer.errors import RunError, UnavailableError, UsageError, model_error_class
from grpo_trainer.fleet.weight_session import listener_of
from grpo_trainer.sampling.reward import _check_file

PATIENCE_S = 120.0

BEFORE_TORCH = """
import gc, sys, types, urllib.error, urllib.request

def get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return type(error.reason).__name__, ""

def run(config, *, resume, status, stop):
    url = f"http://127.0.0.1:{config.server.port}"
    print("torch" in sys.modules, *(get(url + route) for route in ("/livez", "/readyz", "/metrics", "/")), sep="\\n")
    return 0

class Libraries(types.ModuleType):
    @property
    def run(self):
        assert gc.get_threshold()[0] > 10_000, "imported while garbage is collected as often as ever"
        return run

sys.modules["grpo_trainer.run"] = Libraries("grpo_trainer.run")
from grpo_trainer.__main__ import command
command(sys.argv[1:])
"""

FILES_READ: dict[str, Callable[[Path], object]] = {
    "run file": lambda file: read_config(RunConfig, [str(file)], program="grpo-train", env_prefix="GRPO_TRAIN__"),
    "prompt": lambda file: text_or_file(str(file), "data.system"),
    "reward": lambda file: _check_file(
        file,
        RewardDescription(name="mine", documentation="", params_schema={}, columns=[], code_hash=""),
        "http://mine",
    ),
}


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    return write_run_file(tmp_path, rollout={})


def memory_lines(run: dict[str, object]) -> dict[str, str]:
    """What a dry run says of the memory of a rank."""
    from grpo_trainer.dry_run import ModelWithoutWeights, _memory

    return dict(_memory(ModelWithoutWeights.of(RunConfig.model_validate(run))))


def before_torch(run_file: Path, rank: str) -> list[str]:
    """What the routes say when the heavy libraries are about to be imported."""
    of_two = {"WORLD_SIZE": "2", "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    command = [sys.executable, "-c", BEFORE_TORCH, str(run_file), "--server.port", str(free_port())]
    done = subprocess.run(
        command,
        env=os.environ | of_two | {"RANK": rank},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_it_serves_before_torch_is_imported(run_file: Path):
    torch_is_there, livez, readyz, metrics, page = before_torch(run_file, "0")
    assert torch_is_there == "False"
    assert livez.startswith("(200, ")
    assert readyz.startswith("(503, ")
    assert "loading the libraries; since " in readyz
    assert metrics.startswith("(200, ")
    assert page.startswith("(200, '<!DOCTYPE html>")


def test_other_ranks_serve_nothing(run_file: Path):
    assert before_torch(run_file, "1")[1:] == ["('ConnectionRefusedError', '')"] * 4


@pytest.mark.deepspeed
class TestWaitingForServers:
    def test_it_says_for_whom_and_ends_with_3(self, run_file: Path, tmp_path: Path):
        port, rollout, reward = free_port(), free_port(), f"http://127.0.0.1:{free_port()}"
        flags = {
            "--server.port": port,
            "--rollout.urls": json.dumps([f"http://127.0.0.1:{rollout}"]),
            "--rollout.startup_timeout_s": PATIENCE_S,
            "--reward.url": reward,
            "--reward.startup_timeout_s": 5,
        }
        words = [str(word) for pair in flags.items() for word in pair]
        log = tmp_path / "log"
        with log.open("wb") as output:
            trainer = subprocess.Popen([BIN / "grpo-train", run_file, *words], stdout=output, stderr=output)
        try:
            url = f"http://127.0.0.1:{port}"
            until_ready_says(
                url, f"waiting for the rollout server at http://127.0.0.1:{rollout}: All connection", trainer
            )
            assert httpx.get(f"{url}/livez", trust_env=False).status_code == 200
            assert httpx.get(f"{url}/info", trust_env=False).json()["max_steps"] == 2
            assert "waiting for the rollout server" in first_event(url)["sections"]["now"]["waits"]["for"]
            with a_rollout_server(rollout, tmp_path / "model"):
                until_ready_says(url, f"waiting for the reward server at {reward}: All connection attempts", trainer)
                assert trainer.wait(PATIENCE_S) == 3, log.read_text()
        finally:
            trainer.kill()
            trainer.wait()
        said = log.read_text()
        assert f"error: the reward server {reward} did not come up within 5 s" in said
        assert "Traceback" not in said


def until_ready_says(url: str, text: str, trainer: "subprocess.Popen[bytes]") -> None:
    deadline, said = time.monotonic() + PATIENCE_S, ""
    while time.monotonic() < deadline and trainer.poll() is None:
        try:
            answer = httpx.get(f"{url}/readyz", trust_env=False)
        except httpx.TransportError:
            answer = None
        if answer is not None:
            assert answer.status_code == 503
            said = answer.json()["detail"]
            if text in said:
                assert "; since " in said
                assert ", at most until " in said
                return
        time.sleep(0.1)
    raise AssertionError(f"/readyz never said {text!r}, but {said!r}")


def first_event(url: str) -> dict:
    with httpx.stream("GET", f"{url}/events", trust_env=False, timeout=PATIENCE_S) as stream:
        return next(json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))


@contextmanager
def a_rollout_server(port: int, model: Path) -> Iterator[None]:
    """As much of one as the trainer asks before it loads its model."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    info = RolloutInfo(
        version="0", protocol_version=PROTOCOL_VERSION, engine="none", server_id="s", model=str(model), dtype="float32",
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer.get_vocab(), eos_token_id=tokenizer.eos_token_id),
        chat_template_fingerprint=None, max_model_len=4096, world_size=1, device="cpu",
        weights=WeightState(state="initial", version=0),
    )  # fmt: skip

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"ok": true}' if self.path == "/livez" else info.model_dump_json().encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class TestExitStatus:
    @pytest.mark.parametrize(("error", "status"), [(RunError, 1), (UsageError, 2), (UnavailableError, 3)])
    def test_each_kind_of_error_has_its_own(
        self, error: type[Exception], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ):
        def fail(words: list[str]) -> int:
            raise error("what is wrong", hint="what to change")

        monkeypatch.setattr(__main__, "_train", fail)
        assert __main__.main(["run.yaml"]) == status
        assert capsys.readouterr().err == "error: what is wrong\nhint: what to change\n"

    def test_a_folder_does_not_get_better_but_the_hub_comes_back(self, tmp_path: Path):
        unknown = OSError("no file named config.json")
        for name in (str(tmp_path), "/nowhere/model", "./model", "~/model"):
            assert model_error_class(name, unknown) is UsageError
        assert model_error_class("Qwen/Qwen2.5-0.5B", unknown) is UnavailableError

    @pytest.mark.parametrize("code", ["ESTALE", "EIO", "EDQUOT", "ENOSPC", "ETIMEDOUT"])
    def test_a_file_server_that_was_away_comes_back(self, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        away = OSError(getattr(errno, code), os.strerror(getattr(errno, code)))
        assert model_error_class(str(tmp_path), away) is UnavailableError
        monkeypatch.setattr(Path, "mkdir", lambda *_, **__: (_ for _ in ()).throw(away))
        with pytest.raises(UnavailableError, match="cannot be made"):
            make_run_folder(tmp_path / "run")

    @pytest.mark.parametrize(("code", "kind"), [("ESTALE", UnavailableError), ("EACCES", UsageError)])
    @pytest.mark.parametrize("read", FILES_READ.values(), ids=FILES_READ)
    def test_so_may_any_file_that_a_run_reads(
        self,
        read: Callable[[Path], object],
        code: str,
        kind: type[Exception],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ):
        away = OSError(getattr(errno, code), os.strerror(getattr(errno, code)))
        (tmp_path / "file").touch()
        for name in ("read_text", "read_bytes"):
            monkeypatch.setattr(Path, name, lambda *_, **__: (_ for _ in ()).throw(away))
        with pytest.raises(kind, match=f"file.*{away.strerror}"):
            read(tmp_path / "file")

    def test_so_may_a_model_that_a_dry_run_looks_at(self, run_file: Path, monkeypatch: pytest.MonkeyPatch):
        away = OSError(errno.ESTALE, "Stale file handle")
        monkeypatch.setattr(AutoConfig, "from_pretrained", lambda *_, **__: (_ for _ in ()).throw(away))
        with pytest.raises(UnavailableError, match=r"no model in .*Stale file handle"):
            memory_lines(yaml.safe_load(run_file.read_text()))

    def test_a_dry_run_counts_a_head_that_is_the_embedding_once(self, run_file: Path, tmp_path: Path):
        shape = {"vocab_size": 100, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
        counted = {}
        for tied in (True, False):
            config = Qwen2Config(**shape, num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=tied)
            config.save_pretrained(tmp_path / str(tied))
            run = yaml.safe_load(run_file.read_text()) | {"model": {"name_or_path": str(tmp_path / str(tied))}}
            counted[tied] = memory_lines(run)["parameters"].split()[0]
        assert int(counted[False].replace(",", "")) - int(counted[True].replace(",", "")) == 100 * 16

    @pytest.mark.parametrize(
        ("stage", "offloads", "shares"), [(0, False, 1), (2, True, 1), (3, False, 4), (3, True, 4)]
    )
    def test_a_dry_run_shards_the_reference_as_the_policy(
        self, stage: int, offloads: bool, shares: int, run_file: Path, tmp_path: Path
    ):
        from grpo_trainer.dry_run import GIB

        shape = {"vocab_size": 50_000, "hidden_size": 512, "intermediate_size": 32, "num_hidden_layers": 1}
        Qwen2Config(**shape, num_attention_heads=2, num_key_value_heads=2).save_pretrained(tmp_path / "model")
        run = yaml.safe_load(run_file.read_text()) | {
            "model": {"name_or_path": str(tmp_path / "model")},
            "algorithm": {"beta": 0.01},
            "deepspeed": {"zero_stage": stage, "nproc_per_node": 4, "offload_optimizer": offloads},
        }
        plan = memory_lines(run)
        size = int(plan["parameters"].split()[0].replace(",", "")) * 2 / GIB / shares
        assert f"weights {size:.2f}" in plan["memory of a rank"]
        assert f"reference {size:.2f}" in plan["memory of a rank"]
        if offloads:  # under ZeRO-3 the gradients lie with the optimizer: two numbers of 2 bytes are left, and one of 4
            gradients = 0.0 if stage == 3 else 2 * size / 4
            assert f"about {2 * size + gradients:.2f} GiB without activations" in plan["memory of a rank"]
        if stage == 3:  # four bytes for each parameter, and for a fourth of them unless that part is offloaded
            run["deepspeed"]["coalesce_grad_reduction"] = True
            whole = 2 * size * shares * (1.0 if offloads else 1.25)
            assert f"gradients {whole:.2f}," in memory_lines(run)["memory of a rank"]

    def test_a_dry_run_counts_no_gradient_of_what_is_frozen_and_pushes_it(self, run_file: Path, tmp_path: Path):
        from grpo_trainer.dry_run import ModelWithoutWeights

        shape = {"vocab_size": 50_000, "hidden_size": 512, "intermediate_size": 32, "num_hidden_layers": 1}
        config = Qwen2Config(**shape, num_attention_heads=2, num_key_value_heads=2)
        Qwen2ForCausalLM(config).save_pretrained(tmp_path / "model")
        model = {"name_or_path": str(tmp_path / "model"), "freeze_parameters_regex": "embed_tokens"}
        run = yaml.safe_load(run_file.read_text()) | {"model": model}
        assert "gradients 0.10," in memory_lines(run)["memory of a rank"], "not those of the head alone"
        pushed = ModelWithoutWeights.of(RunConfig.model_validate(run)).pushed("full")
        assert "model.embed_tokens.weight" in {name for name, *_ in pushed}

    def test_a_bare_optimizer_that_should_be_offloaded_is_refused(self, run_file: Path):
        run = yaml.safe_load(run_file.read_text()) | {"deepspeed": {"zero_stage": 0, "offload_optimizer": True}}
        run["model"] |= {"dtype": "float32"}
        with pytest.raises(ValidationError, match=r"deepspeed\.offload_optimizer has no effect with"):
            RunConfig.model_validate(run)
        run["model"] |= {"dtype": "bfloat16"}  # DeepSpeed's stage 1
        assert RunConfig.model_validate(run).deepspeed.offload_optimizer

    def test_an_old_driver_is_no_gpu(self, monkeypatch: pytest.MonkeyPatch):
        """DeepSpeed would have torch ask NVML, which has no opinion on that."""
        monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
        assert __main__.main([]) == 2
        assert os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == "0"

    def test_the_usage_tells_them(self, capsys: pytest.CaptureFixture[str]):
        assert __main__.main(["--help"]) == 0
        said = capsys.readouterr().out
        assert all(f"\n             {status} " in said for status in (1, 2, 3))

    def test_a_server_that_others_reach_needs_a_token(self, run_file: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.delenv("GRPO_API_TOKEN", raising=False)
        done = subprocess.run(
            [BIN / "grpo-train", run_file, "--server.host", "0.0.0.0"],  # noqa: S104
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert done.stderr.startswith("error: server.host 0.0.0.0 can be reached from other machines")

    def test_a_dry_run_tells_that_too(self, run_file: Path, monkeypatch: pytest.MonkeyPatch):
        from grpo_trainer.dry_run import dry_run

        monkeypatch.delenv("GRPO_API_TOKEN", raising=False)
        config = RunConfig.model_validate(yaml.safe_load(run_file.read_text()) | {"server": {"host": "10.0.0.1"}})
        with pytest.raises(UsageError, match="can be reached from other machines"):
            dry_run(config)

    def test_a_port_for_the_weights_that_is_taken_may_be_free_later(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            config = WeightsConfig(port=taken.getsockname()[1])
            with pytest.raises(UnavailableError, match="cannot be listened on: Address already in use"):
                listener_of(config)
