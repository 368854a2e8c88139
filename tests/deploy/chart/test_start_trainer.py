"""files/start_trainer.sh, run for real around a stand-in for the trainer."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.processes import free_port

from .rendering import CHART

pytestmark = pytest.mark.processes

SCRIPT = CHART / "files" / "start_trainer.sh"
Pod = subprocess.Popen[str]
Pods = list[Pod]

# What grpo-train does with signals: SIGTERM saves and ends with 0. `how` says what else happens.
STAND_IN = """\
import os, signal, sys, time

def stop(*_):
    time.sleep(0.3)
    os.write(1, b"saved\\n")  # print is not for signal handlers
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
os.write(1, f"rank {rank} of {world_size} {sys.argv[1:]}\\n".encode())
how = os.environ["HOW"]
if how != "wait":
    sys.exit(int(how))
time.sleep(60)
"""
# The script looks again after whole seconds: tenths of seconds with this. What a test waits for has a decimal point.
QUICK_SLEEP = f"""\
#!/bin/sh
case "$1" in [1-9]) exec {shutil.which("sleep")} "0.$1";; *) exec {shutil.which("sleep")} "$1";; esac
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return _folder(tmp_path)


def _folder(path: Path) -> Path:
    """bin/grpo-train, the package grpo_trainer and python3 are the stand-ins."""
    (path / "bin").mkdir(parents=True)
    program = path / "bin" / "grpo-train"
    program.write_text(f"#!{sys.executable}\n{STAND_IN}")
    program.chmod(0o755)
    (path / "packages" / "grpo_trainer").mkdir(parents=True)
    (path / "packages" / "grpo_trainer" / "__main__.py").write_text(STAND_IN)
    python = path / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return path


def _look_quickly(folder: Path) -> None:
    """Only where nobody waits long: each look is a process or two."""
    sleep = folder / "bin" / "sleep"
    sleep.write_text(QUICK_SLEEP)
    sleep.chmod(0o755)


def _launch_by(folder: Path, script: str, *cases: str) -> None:
    """The script in place of torchrun, and of the seconds in which it imports torch. `cases`: of python3's words."""
    (folder / "launched.sh").write_text(script)
    lookup = "*getaddrinfo*) echo 127.0.0.1; exit;;"
    launched = " ".join((f"*grpo_trainer.launch*) exec sh {folder}/launched.sh;;", *cases, lookup))
    (folder / "bin" / "python3").write_text(f'#!/bin/sh\ncase "$*" in {launched} esac\nexec {sys.executable} "$@"\n')


def _start(folder: Path, script: Path | str = SCRIPT, **variables: str) -> Pod:
    environment = {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(folder / "packages"),
        "RUN_FILE": "/etc/grpo/run/run.yaml",
        "LOCK_FILE": str(folder / ".run.lock"),
        "LOCK_TIMEOUT_S": "5",
        "START_TIMEOUT_S": "30",
        "JOB_UID": "4ae5-09",
        "GRACE_S": "60",
        "NODES": "1",
        "NODE_RANK": "0",
        "RANKS_PER_NODE": "1",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "0",
        "HOW": "wait",
        **variables,
    }
    return subprocess.Popen(
        ["sh", str(script)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def started(folder: Path) -> Iterator[Pods]:
    processes: Pods = []
    yield processes
    for process in processes:
        process.terminate()
    for process in processes:
        process.communicate(timeout=30)


def _line(process: Pod) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


@pytest.mark.parametrize(("how", "status"), [("0", 0), ("1", 1), ("2", 2)])
def test_the_status_is_the_trainers(folder: Path, how: str, status: int) -> None:
    process = _start(folder, HOW=how)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == status
    assert "['/etc/grpo/run/run.yaml', '--resume']" in out


def test_stopped_is_not_done(folder: Path) -> None:
    """The trainer ends with 0 after SIGTERM; for a Job that would be the end of training."""
    process = _start(folder)
    assert "rank None" in _line(process)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert "saved" in out
    assert process.returncode == 143


def test_one_at_a_time_in_a_run_folder(folder: Path, started: Pods) -> None:
    first = _start(folder)
    started.append(first)
    _line(first)
    second = _start(folder, LOCK_TIMEOUT_S="30")
    started.append(second)
    time.sleep(0.5)
    assert second.poll() is None
    first.send_signal(signal.SIGTERM)
    assert "saved" in _line(first)
    assert "rank None" in _line(second)


def test_a_lock_that_stays_taken_is_named(folder: Path, started: Pods) -> None:
    first = _start(folder)
    started.append(first)
    _line(first)
    second = _start(folder, LOCK_TIMEOUT_S="1")
    _, error = second.communicate(timeout=30)
    assert second.returncode == 75
    assert "waiting for it, 1 s at most" in error
    assert "another trainer using this run folder" in error


def test_a_killed_trainer_leaves_no_lock(folder: Path, started: Pods) -> None:
    first = _start(folder)
    started.append(first)
    _line(first)
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    first.wait(timeout=10)
    assert first.returncode == 137
    second = _start(folder, HOW="0", LOCK_TIMEOUT_S="2")
    second.communicate(timeout=30)
    assert second.returncode == 0


@pytest.mark.skipif(not shutil.which("flock"), reason="no flock")
def test_two_pods_are_one_training(folder: Path, started: Pods) -> None:
    port = str(free_port())
    common = {"NODES": "2", "RANKS_PER_NODE": "2", "MASTER_PORT": port, "HOW": "0", "LOGLEVEL": "INFO"}
    started += [_start(folder, NODE_RANK=str(rank), **common) for rank in (0, 1)]
    outputs = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], outputs
    lines = sorted(line.split(" [")[0] for out, _ in outputs for line in out.splitlines() if line.startswith("rank"))
    assert lines == [f"rank {rank} of 4" for rank in range(4)]
    # torchrun would give up after 15 minutes, whatever the first pod waits for.
    for _, log in outputs:
        assert re.search(r"rdzv_configs +: \{'timeout': '?35\b", log), log


def test_the_first_pod_has_time_to_get_its_gpus(folder: Path) -> None:
    began_s = time.monotonic()
    pod = _start(folder, NODES="2", NODE_RANK="1", MASTER_ADDR="nowhere.invalid", START_TIMEOUT_S="2")
    _, error = pod.communicate(timeout=60)
    assert pod.returncode == 1
    assert "nowhere.invalid has no address after 2 s: is the first pod scheduled?" in error
    assert time.monotonic() - began_s >= 2


def test_a_pod_that_comes_back_after_the_training_is_done_has_nothing_to_do(folder: Path) -> None:
    """A node that goes at the very end: the first pod is Completed, has no address any more, and does not come back."""
    (folder / ".run.lock.4ae5-09.end").write_text("done\n")
    pod = _start(folder, NODES="2", NODE_RANK="1", MASTER_ADDR="nowhere.invalid", START_TIMEOUT_S="3")
    out, _ = pod.communicate(timeout=60)
    assert pod.returncode == 0
    assert "the training is done" in out


# Ranks of several pods: as in the trainer, a signal stops only the first, with a checkpoint; then all end with 0.
TOGETHER = """\
import os, pathlib, signal, sys, time

ended = pathlib.Path(os.environ["ENDED"])
first = os.environ["RANK"] == "0"

def stop(*_):
    if first:
        os.write(1, b"saved\\n")
        ended.touch()
signal.signal(signal.SIGTERM, stop)
os.write(1, b"started\\n")
while not ended.exists():
    time.sleep(0.1)
time.sleep(0.5 if first else 0)
"""
# The same without torchrun: the other pods end before the first one does.
LAUNCHED = """\
trap '[ "$NODE_RANK" != 0 ] || { sleep "$SAVE_S"; echo saved; : >"$ENDED"; }' TERM
echo started
[ "$HOW$NODE_RANK" != done0 ] || : >"$ENDED"
until [ -e "$ENDED" ]; do sleep 0.1; done
[ "$NODE_RANK" != 0 ] || sleep 0.5
"""


@pytest.fixture
def pair(started: Pods) -> Callable[..., Pods]:
    """Two pods of one training, which have both started."""

    def start(
        folder: Path, how: str, ended: str = "ended", *, torchrun: bool = False, quick: bool = True, **variables: str
    ) -> Pods:
        if torchrun:
            (folder / "packages" / "grpo_trainer" / "__main__.py").write_text(TOGETHER)
        else:
            _launch_by(folder, LAUNCHED)
        if quick:
            _look_quickly(folder)
            variables["GRACE_S"] = "600"  # counted in seconds that are tenths
        own = {"MASTER_PORT": str(free_port()), "HOW": how, "ENDED": str(folder / ended), "SAVE_S": "0", **variables}
        pods = [_start(folder, NODES="2", NODE_RANK=str(rank), **own) for rank in (0, 1)]
        started.extend(pods)
        for pod in pods:
            assert _line(pod) == "started"
        return pods

    return start


def test_when_one_pod_is_stopped_all_are(tmp_path: Path, pair: Callable[..., Pods]) -> None:
    """A pod that ended with 0 would be done for ever, and the pods that come back would wait for it.

    torchrun ends otherwise than its ranks, so it is the real one where a pod learns of the stop from another.
    """
    cases = {
        told: pair(_folder(tmp_path / f"told-{told[-1]}-of-{len(told)}"), "wait", torchrun=told == (1,), quick=False)
        for told in ((0,), (1,), (0, 1))
    }
    for told, pods in cases.items():
        for rank in told:
            pods[rank].send_signal(signal.SIGTERM)
    for told, pods in cases.items():
        outputs = [pod.communicate(timeout=60)[0] for pod in pods]
        assert outputs[0].count("saved") == 1, told
        assert [pod.returncode != 0 for pod in pods] == [True, True], (told, outputs)


def test_all_pods_are_done_when_the_training_is_and_what_old_jobs_left_is_taken_away(
    folder: Path, pair: Callable[..., Pods]
) -> None:
    old, young, other = (folder / f".{name}.end" for name in ("run.lock.old", "run.lock.young", "another-run.lock.old"))
    for file in (old, young, other):
        file.write_text("stopped\n")
    for file in (old, other):
        os.utime(file, (0, 0))
    pods = pair(folder, "done")
    outputs = [pod.communicate(timeout=60) for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], outputs
    assert [file.exists() for file in (old, young, other)] == [False, True, True]


def test_an_old_end_is_not_taken_for_this_one(folder: Path, pair: Callable[..., Pods]) -> None:
    (folder / ".run.lock.4ae5-09.end").write_text("done\n")
    pods = pair(folder, "wait")
    pods[0].send_signal(signal.SIGTERM)
    for pod in pods:
        pod.communicate(timeout=60)
    assert all(pod.returncode for pod in pods)


def test_a_job_that_still_saves_is_not_taken_for_its_successor(folder: Path, pair: Callable[..., Pods]) -> None:
    """After an upgrade: what the pods of the old Job tell each other is not for those of the new one."""
    old = pair(folder, "wait", "old-ended", JOB_UID="old", SAVE_S="2.0")
    for pod in old:
        pod.send_signal(signal.SIGTERM)
    new = pair(folder, "done", "new-ended", JOB_UID="new", LOCK_TIMEOUT_S="60")
    assert [pod.wait(timeout=60) for pod in new] == [0, 0]
    assert [pod.wait(timeout=60) for pod in old] == [143, 143]


# One pod of several, without torchrun. It ends with 0 when it is told to stop.
ALONE = """\
trap 'echo saved; exit 0' TERM
echo started
[ "$HOW" != done ] || { ln -s /dev/full "$LOCK_FILE.$JOB_UID.end"; exit 0; }
waited=0
until [ "$waited" = 300 ]; do sleep 0.1; waited=$((waited + 1)); done
"""


@pytest.fixture
def alone(started: Pods) -> Callable[..., Pod]:
    """A pod of two that finds no other one."""

    def start(folder: Path, *cases: str, **variables: str) -> Pod:
        _launch_by(folder, ALONE, *cases)
        _look_quickly(folder)
        pod = _start(folder, NODES="2", **variables)
        started.append(pod)
        assert _line(pod) == "started"
        return pod

    return start


def test_a_pod_that_cannot_tell_the_first_one_to_stop_stops_its_own_ranks(
    folder: Path, alone: Callable[..., Pod]
) -> None:
    """Status 2 of the shell would end the training for good, and its ranks would be killed."""
    pod = alone(folder, NODE_RANK="1", LOCK_FILE=str(folder / "no-such-folder" / ".run.lock"), GRACE_S="1")
    pod.send_signal(signal.SIGTERM)
    out, error = pod.communicate(timeout=30)
    assert pod.returncode == 143
    assert "saved" in out
    assert "the first pod cannot be told to stop" in error


def test_an_end_that_cannot_be_written_is_tried_again(folder: Path, alone: Callable[..., Pod]) -> None:
    """The other pods come back, and would wait for ever for one that is done."""
    pod = alone(folder, NODE_RANK="0", HOW="done")
    _, error = pod.communicate(timeout=30)
    assert pod.returncode == 1
    assert "the other pods cannot be told that the training is done" in error


def test_a_pod_whose_first_pod_is_another_one_starts_again(tmp_path: Path, alone: Callable[..., Pod]) -> None:
    """Its node went without a word: no connection to it ever ends, and its successor waits for this one."""
    pods = {}
    for number, later in enumerate(("10.1.0.9", "10.1.0.9 10.1.0.7", "")):
        folder = _folder(tmp_path / str(number))
        (address := folder / "address").write_text("10.1.0.7")
        lookup = f"*getaddrinfo*) echo >>{folder}/looked; cat {address}; exec test -s {address};;"
        lock = str(folder / "no-such-folder" / ".run.lock")  # without that folder it ends at once when it is told to
        pods[later] = alone(folder, lookup, NODE_RANK="1", LOCK_FILE=lock, GRACE_S="1")
        address.write_text(later)
    replaced = pods.pop("10.1.0.9")
    _, error = replaced.communicate(timeout=30)
    assert replaced.returncode == 143
    assert "is another one now: this one starts again" in error
    for number in (1, 2):
        looked = tmp_path / str(number) / "looked"
        before = looked.stat().st_size
        while looked.stat().st_size < before + 3 and all(pod.poll() is None for pod in pods.values()):
            time.sleep(0.02)
    assert {later: pod.poll() for later, pod in pods.items()} == dict.fromkeys(pods)


def _told_to_stop(
    tmp_path: Path, started: Pods, *, probes: dict[int, str], killed: tuple[int, ...]
) -> dict[int, tuple[int, str]]:
    """Exit status and standard error of pods whose trainers end when they are `killed`, or after longer than until
    somebody is."""
    pods = {}
    for number, probe in probes.items():
        folder = _folder(tmp_path / str(number))
        script = shutil.copy(SCRIPT, folder)
        (folder / "trainer_probe.py").write_text(probe)
        _look_quickly(folder)
        ends = "" if number in killed else "sleep 4.0; exit 0"
        trainer = f"#!/bin/sh\ntrap '{ends}' TERM\necho started\nwhile :; do sleep 0.1; done\n"
        (folder / "bin" / "grpo-train").write_text(trainer)
        pods[number] = _start(folder, script=script, HUNG_GRACE_S="1", SILENT_GRACE_S="1")
        started.append(pods[number])
    for pod in pods.values():
        assert _line(pod) == "started"
        pod.send_signal(signal.SIGTERM)
    errors = {number: pod.communicate(timeout=30)[1] for number, pod in pods.items()}
    return {number: (pod.returncode, errors[number]) for number, pod in pods.items()}


def test_a_trainer_that_does_not_answer_is_asked_again(tmp_path: Path, started: Pods) -> None:
    """It may be in one long call of a checkpoint, or nothing in it runs any more."""
    probes = {
        later: "import pathlib, sys\n"
        "asked = pathlib.Path(__file__).with_name('asked')\n"
        f"status = {later} if asked.exists() else 4\n"
        "asked.touch()\n"
        "sys.exit(status)\n"
        for later in (4, 3, 0)
    }
    ends = _told_to_stop(tmp_path, started, probes=probes, killed=(4, 3))
    assert {later: status for later, (status, _) in ends.items()} == {4: 137, 3: 137, 0: 143}
    assert all("the trainer does not answer" in error for _, error in ends.values())


def test_a_trainer_that_says_it_hangs_has_little_time_to_end(tmp_path: Path, started: Pods) -> None:
    """One that only does not answer may be writing a checkpoint on a busy node."""
    probes = {livez: f"import sys; sys.exit({livez})" for livez in (3, 1, 0)}
    ends = _told_to_stop(tmp_path, started, probes=probes, killed=(3,))
    assert {livez: status for livez, (status, _) in ends.items()} == {3: 137, 1: 143, 0: 143}
    assert {livez: "the training hangs" in error for livez, (_, error) in ends.items()} == {3: True, 1: False, 0: False}


@pytest.mark.parametrize("wrong", [{"NODES": "2", "GRACE_S": "ten minutes"}, {"GRACE_S": "1 +"}])
def test_a_failure_of_the_shell_is_not_taken_for_a_mistake_in_the_run_file(folder: Path, wrong: dict[str, str]) -> None:
    pod = _start(folder, **wrong)
    _, error = pod.communicate(timeout=30)
    assert error
    assert pod.returncode == 1
