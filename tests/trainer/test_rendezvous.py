"""Several ranks while the run starts: they wait for rank 0 as long as it waits for the servers, and not longer."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.processes import free_port
from tests.trainer.made_run_file import write_run_file
from tests.warm_python import Forked, warm_python

from grpo_trainer.checkpoint.files import begin_checkpoint, describe_files, finish_checkpoint, list_files
from grpo_trainer.config.optimization import DeepSpeedConfig
from grpo_trainer.config.run_config import ModelConfig
from grpo_trainer.engine.state import STATE_TAG, layout, write_engine_state
from grpo_trainer.errors import RunError, UnavailableError, UsageError
from grpo_trainer.ranks import rendezvous, stop_signal
from grpo_trainer.ranks.rendezvous import Rendezvous
from grpo_trainer.ranks.stop_signal import STOP_SIGNALS, StopRequested, StopSignal

PATIENCE_S = 120.0
JOIN_LIMIT_S = 5.0
BUSY_S = 7.0

# A run whose servers take longer than the ranks wait for each other, and which ends where training would begin.
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from types import SimpleNamespace

import psutil

from grpo_trainer import run
from grpo_trainer.checkpoint import files as checkpoint
from grpo_trainer.__main__ import command

out, busy_s = Path(sys.argv[1]), float(sys.argv[2])
said = {"verified": 0, "loaded": None}
verify = checkpoint.verify

def counting(folder):
    said["verified"] += 1
    return verify(folder)

class Orchestrator:
    teaches_itself = False

    def __init__(self, *_, **__):
        self.loop = SimpleNamespace(is_alive=lambda: True)
        said["limit"] = None

    def __enter__(self):
        return self

    def __exit__(self, *_): ...

    def connect(self):
        time.sleep(busy_s)
        print("connected", flush=True)

class Journal(Orchestrator):
    failure = None
    def final_totals(self): ...
    def stage(self, name): ...

def report(ranks, step):
    import json
    import torch.distributed as dist
    handled = [signal.getsignal(number) not in (signal.SIG_DFL, signal.default_int_handler)
               for number in (signal.SIGTERM, signal.SIGINT)]
    heard = ranks.broadcast_json(step)
    own = psutil.Process().net_connections(kind="inet")
    listens = [connection.laddr.ip for connection in own if connection.status == psutil.CONN_LISTEN]
    said.update(step=heard, ranks=ranks.world_size, handled=handled, heard=heard, listens=listens)
    (out / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(said))
    dist.barrier()
    return heard

def follow(ranks, work, commands, status):
    report(ranks, None)
    return 0 if ranks.broadcast_json(None)[0] == "end" else 1

checkpoint.verify = counting
run.Orchestrator, run.Journal, run.follow = Orchestrator, Journal, follow
run.train = lambda parts, *, step: report(parts.crew.ranks, step)
def TrainingEngine(*_, **__):
    print("joined", flush=True)
    time.sleep(float(os.environ.get("LOAD_S", "0")))
    export = SimpleNamespace(kind="full", absent=[], device=None, sharded=False, peft_config=None, base_digest=None)
    load = lambda folder: said.update(loaded=str(folder))
    cpu = SimpleNamespace(type="cpu")
    saved = dict(write_hf=lambda folder, state: folder.mkdir(), num_bytes=0, num_checkpoint_bytes=0)
    return SimpleNamespace(load=load, export=export, device=cpu, has_experts=False, prefixes=None, **saved)

run.TrainingEngine = TrainingEngine
run.show_servers = run.write_report_and_summary = lambda *_, **__: None
command(sys.argv[3:])
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    return write_run_file(
        tmp_path,
        rollout={"urls": [f"http://127.0.0.1:{free_port()}"], "startup_timeout_s": PATIENCE_S},
        max_steps=9,
        deepspeed={"nproc_per_node": 2, "timeout_s": JOIN_LIMIT_S},
        server={"enabled": False},
    )


def a_checkpoint(run_dir: Path, step: int) -> Path:
    folder = begin_checkpoint(run_dir, step)
    (folder / "engine" / STATE_TAG).mkdir(parents=True)
    own = layout(zero_stage=DeepSpeedConfig().zero_stage, world_size=2, dtype=ModelConfig(name_or_path="any").dtype)
    write_engine_state(folder / "engine", own, {"updates_done": step, "skipped_updates": 0})
    state = {"step": step, "cursor": {}, "totals": {}}
    return finish_checkpoint(run_dir, step, state, describe_files(folder, list_files(folder)), keep=10)


ONE_MACHINE = """
import sys
from grpo_trainer.ranks.one_machine import run_ranks
sys.exit(run_ranks([sys.executable, *sys.argv[1:]], 2))
"""


class Started:
    """The ranks of a Python program, `words`, as a run of one machine starts them, under torchrun, or by their
    environment alone; their output in files."""

    def __init__(self, way: str, words: list[object], folder: Path, *, ranks: int = 2):
        environment = {"OMP_NUM_THREADS": "1", "GRPO_LOG_LEVEL": "INFO"}
        port = str(free_port())
        self.processes: list[Forked | subprocess.Popen[bytes]] = []
        if way == "by hand":
            self.logs = [folder / f"log-{rank}" for rank in range(ranks)]
            for rank, log in enumerate(self.logs):
                where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
                place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                self.processes.append(warm_python(*words, output=log, environment=environment | where | place))
            return
        if way == "one machine":
            self._start([sys.executable, "-c", ONE_MACHINE, *map(str, words)], environment, folder)
            return
        by_address = ["--nnodes", "1", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", port]
        meets = {"torchrun": ["--standalone"], "torchrun over nodes": by_address}[way]
        command = [sys.executable, "-m", "grpo_trainer.launch", *meets, "--nproc_per_node=2", *map(str, words)]
        self._start(command, environment, folder)

    def _start(self, command: list[str], environment: dict[str, str], folder: Path) -> None:
        self.logs = [folder / "log"]
        with self.logs[0].open("wb") as output:
            self.processes.append(subprocess.Popen(command, env=os.environ | environment, stdout=output, stderr=output))

    def __enter__(self) -> "Started":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @property
    def said(self) -> str:
        return "\n".join(log.read_text() for log in self.logs if log.exists())

    def until_said(self, *texts: str) -> None:
        self.until(lambda: all(text in self.said for text in texts))

    def until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < deadline, self.said
            assert all(process.poll() is None for process in self.processes), self.said
            time.sleep(0.1)

    def end(self, limit_s: float = PATIENCE_S) -> list[int]:
        """The exit status of each."""
        ends = time.monotonic() + limit_s
        return [process.wait(max(0.1, ends - time.monotonic())) for process in self.processes]


@pytest.mark.deepspeed
@pytest.mark.parametrize("way", ["one machine", "torchrun", "torchrun over nodes", "by hand"])
def test_they_wait_longer_than_joining_may_take_and_only_rank_0_verifies(way: str, run_file: Path, tmp_path: Path):
    newest = a_checkpoint(tmp_path / "run", 3)
    program = tmp_path / "rank.py"
    program.write_text(PROGRAM)
    with Started(way, [program, tmp_path, BUSY_S, run_file, "--resume"], tmp_path) as started:
        assert set(started.end()) == {0}, started.said
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert [rank["verified"] for rank in ranks] == [1, 0]
    for rank in ranks:
        assert rank["loaded"] == str(newest / "engine")
        assert rank["step"] == rank["heard"] == 3
        assert rank["ranks"] == 2
        assert rank["handled"] == [True, True]
        if way == "one machine":
            assert set(rank["listens"]) == {"127.0.0.1"}


ALL_WAIT = ("waiting for the rollout server", "waiting for rank 0")


@pytest.mark.deepspeed
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_rank_0_waits_ends_all_at_once(number: int, run_file: Path, tmp_path: Path):
    with Started("by hand", ["-m", "grpo_trainer", run_file], tmp_path) as started:
        started.until_said(*ALL_WAIT)
        for process in started.processes:
            process.send_signal(number)
        statuses = started.end(limit_s=PATIENCE_S / 2)
    assert statuses == [0, -number], started.said
    assert "stopped before a step was made" in started.said
    assert "Traceback" not in started.said


def handles(pid: int, number: int) -> bool:
    """Whether the process has a handler for this signal."""
    caught = re.search(r"^SigCgt:\s+(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert caught is not None
    return bool(int(caught[1], 16) >> (number - 1) & 1)


@pytest.mark.deepspeed
def test_a_stop_while_rank_0_waits_in_a_library_ends_it(run_file: Path, tmp_path: Path):
    program = tmp_path / "rank.py"
    program.write_text(PROGRAM)
    with Started("by hand", [program, tmp_path, 0.0, run_file], tmp_path, ranks=1) as started:
        started.until_said("connected")
        started.until(lambda: not handles(started.processes[0].pid, signal.SIGTERM))
        started.processes[0].terminate()
        assert started.end(limit_s=5.0) == [-signal.SIGTERM], started.said


@pytest.mark.deepspeed
def test_a_stop_while_the_model_is_loaded_ends_all_before_they_train(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LOAD_S", "2")
    program = tmp_path / "rank.py"
    program.write_text(PROGRAM)
    with Started("by hand", [program, tmp_path, 0.0, run_file], tmp_path) as started:
        started.until(lambda: started.said.count("joined") == 2)
        for process in started.processes:
            process.terminate()
        assert started.end(limit_s=PATIENCE_S / 2) == [0, 0], started.said
    assert started.said.count("stopped before a step was made") == 2
    assert not list(tmp_path.glob("rank-*.json"))


@pytest.mark.deepspeed
def test_when_rank_0_gives_up_the_others_end_and_say_so(run_file: Path, tmp_path: Path):
    """Which torchrun then passes on: see `test_several_ranks_end_as_the_first_that_failed`."""
    words = ["-m", "grpo_trainer", run_file, "--rollout.startup_timeout_s", 3]
    with Started("by hand", words, tmp_path) as started:
        assert started.end() == [3, 1], started.said
    assert "did not come up within 3 s" in started.said
    assert "Traceback" not in started.said
    assert "error: rank 0 ended before the run began" in started.logs[1].read_text()


@pytest.mark.deepspeed
def test_when_rank_0_alone_is_stopped_the_others_do_not_wait_for_ever(run_file: Path, tmp_path: Path):
    """torchrun would wait for all ranks when one of them ends well."""
    with Started("by hand", ["-m", "grpo_trainer", run_file], tmp_path) as started:
        started.until_said(*ALL_WAIT)
        started.processes[0].terminate()
        assert started.end(limit_s=PATIENCE_S / 2) == [0, 0], started.said
    assert started.said.count("stopped before a step was made") == 2


class TestRendezvous:
    @pytest.fixture(autouse=True)
    def by_hand(self, monkeypatch: pytest.MonkeyPatch) -> None:
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        for name, value in place.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
        monkeypatch.setattr(rendezvous, "POLL_S", 0.05)

    def opened(self, rank: int, monkeypatch: pytest.MonkeyPatch) -> Rendezvous:
        monkeypatch.setenv("RANK", str(rank))
        return Rendezvous(connect_s=2.0)

    def wait_for_start(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
        return self.opened(1, monkeypatch).wait_for_start(silence_s=0.3)

    def test_alone_it_does_nothing(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "1")
        with Rendezvous(connect_s=2.0) as alone:
            assert not alone.has_others
            alone.announce({"step": 1})
        monkeypatch.delenv("RANK")
        monkeypatch.setenv("WORLD_SIZE", "2")  # as some clusters leave it behind
        assert not Rendezvous(connect_s=2.0).has_others

    def test_an_announced_start_is_received(self, monkeypatch: pytest.MonkeyPatch):
        with self.opened(0, monkeypatch) as first:
            first.announce({"folder": "/ä", "step": 7})
            assert self.wait_for_start(monkeypatch) == {"folder": "/ä", "step": 7}

    def test_the_next_attempt_does_not_receive_it(self, monkeypatch: pytest.MonkeyPatch):
        with self.opened(0, monkeypatch) as first:
            first.announce({"step": 7})
            with self.opened(0, monkeypatch), pytest.raises(RunError, match="did not announce the start within "):
                self.wait_for_start(monkeypatch)

    def test_a_stop_of_rank_0_is_received(self, monkeypatch: pytest.MonkeyPatch):
        first = self.opened(0, monkeypatch)
        with pytest.raises(StopRequested), first:
            raise StopRequested
        with pytest.raises(StopRequested):
            self.wait_for_start(monkeypatch)

    @pytest.mark.processes
    def test_where_nobody_is(self, monkeypatch: pytest.MonkeyPatch):
        with pytest.raises(UnavailableError, match="the rendezvous of the ranks, gave no answer within 2 s"):
            self.wait_for_start(monkeypatch)

    def test_a_port_that_is_taken_may_be_free_later(self, monkeypatch: pytest.MonkeyPatch):
        with socket.create_server(("", int(os.environ["MASTER_PORT"]))):
            with pytest.raises(UnavailableError, match="the rendezvous of the ranks, cannot be listened on: "):
                self.opened(0, monkeypatch)

    def test_a_launcher_that_does_not_say_where(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.delenv("MASTER_PORT")
        with pytest.raises(UsageError, match="MASTER_PORT"):
            self.opened(0, monkeypatch)


class TestEndingAtOnce:
    @pytest.fixture(autouse=True)
    def handlers(self) -> Iterator[None]:
        before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        yield
        for number, handler in before.items():
            signal.signal(number, handler)

    def test_a_stop_ends_the_process_inside_and_asks_for_a_stop_afterwards(self):
        stop = StopSignal()
        stop.install()
        with stop.ending_at_once():
            assert [signal.getsignal(number) for number in STOP_SIGNALS] == [signal.SIG_DFL] * len(STOP_SIGNALS)
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested

    def test_signals_that_come_together_are_one_stop_and_a_later_one_ends_the_process(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        """As `timeout` sends them: to its child, and to the group of processes."""
        stop, ends = StopSignal(), []
        stop.install()
        monkeypatch.setattr(signal, "raise_signal", ends.append)  # what would end this process
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert (stop.requested, ends) == (True, [])
        monkeypatch.setattr(stop_signal, "ONE_STOP_S", 0.0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert ends == [signal.SIGTERM]

    def test_a_stop_from_before_ends_it(self):
        stop = StopSignal()
        stop.install()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(StopRequested), stop.ending_at_once():
            raise AssertionError("it went on")
