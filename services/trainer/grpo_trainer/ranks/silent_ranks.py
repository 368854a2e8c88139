"""End the run when one of several ranks stands still: a process that is frozen, or a main thread that hangs.

A main thread may be in a collective for a day, so two threads of every rank do it. The first reports once a second, in
the store of the rendezvous, where the main thread is, and whether it is without a heartbeat for too long, as /livez
does: a thread that always reports would also report for a main thread that hangs. Rank 0 reads the reports of all
ranks, the others that of rank 0. The second looks at them, and never waits for the store, which freezes with its host.

A frozen process reports nothing. Its bound is the loop's heartbeat in every stage, also in a push or a save, whose main
thread may be silent for longer; only a load of the start has its own, until rank 0 has loaded, too. Every rank notices
that of rank 0, and rank 0 decides on everything else: a rank that hangs makes others hang in its collectives, and a
frozen one is named first.
Silence is counted in looks and not by the clock, so that a rank that was frozen itself blames nobody.
"""

import json
import logging
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from torch.distributed import DistError, TCPStore

from ..errors import TrainerError
from .launch import environment_rank, environment_world_size
from .place import Place
from .stop_signal import StopSignal

log = logging.getLogger(__name__)

PERIOD_S = 1.0
SUSPECT_S = 5.0
"""After so long without a report a rank may be why others hang."""
CLOSING_S = 5.0
"""How long a thread may need to end, and a log line to be written."""


class Status(Protocol):
    """What a rank's main thread reports; `observe/run_status.py` implements it."""

    def place(self) -> Place: ...

    def process_bound_s(self) -> float: ...

    @property
    def is_commanded(self) -> bool: ...

    def problem(self) -> str | None: ...


class SilentRanks:
    """Use as a context manager around the run. Ends this process with status 1 when a rank stands still, which ends
    the other ranks. Rank 0 stops when another rank was told to: a machine may be drained by itself. Does nothing for a
    single rank. `connect` opens a connection of its own to the store.
    """

    def __init__(self, status: Status, stop: StopSignal, connect: Callable[[], TCPStore]):
        self._status, self._stop, self._connect = status, stop, connect
        self._rank = environment_rank()
        self._reports: dict[int, bytes] = {}
        """Rank → its newest report: its number, `Place`, the bound of its process, problem, and whether it was told to
        stop.

        Empty when its run has ended.
        """
        self._seen: dict[int, bytes] = {}
        self._silent_s: dict[int, float] = {}
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        if environment_world_size() > 1:
            self._threads = [
                threading.Thread(target=target, name=target.__name__, daemon=True)
                for target in (self._report, self._watch)
            ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join(CLOSING_S)

    def _report(self) -> None:
        """Exchange reports until closed; then report nothing, which nobody counts as silence."""
        others = [0] if self._rank else list(range(1, environment_world_size()))
        present: list[int] = []
        num_reports = 0
        try:
            store = self._connect()
            while not self._closed.is_set():
                num_reports += 1
                report = [num_reports, self._status.place(), self._status.process_bound_s(), self._status.problem()]
                store.set(_key(self._rank), json.dumps([*report, self._stop.requested]))
                # A read of a report that is not there yet would wait for it.
                present += [rank for rank in others if rank not in present and store.check([_key(rank)])]
                read = store.multi_get([_key(rank) for rank in present])
                self._reports |= dict(zip(present, read, strict=True))
                self._closed.wait(PERIOD_S)
            store.set(_key(self._rank), "")
        except (DistError, TrainerError) as error:
            log.debug("no reports of ranks any more: %s", error)  # their host is gone: this rank's next command fails

    def _watch(self) -> None:
        while not self._closed.wait(PERIOD_S):
            if (found := self._look()) is not None:
                _end_run(found)

    def _look(self) -> str | None:
        """Return which ranks stand still; None while nobody does, or while a silent rank may be why others do."""
        hanging, suspect = [], False
        for rank, report in self._reports.copy().items():
            same = report == self._seen.get(rank)
            self._seen[rank] = report
            silent_s = self._silent_s[rank] = self._silent_s.get(rank, 0.0) + PERIOD_S if same else 0.0
            if not report:
                continue
            _, (stage, step, _), bound_s, problem, is_told_to_stop = json.loads(report)
            if is_told_to_stop and self._rank == 0 and not self._stop.requested:
                log.info("rank %d was told to stop: all ranks stop, with a checkpoint", rank)
                self._stop.ask()
            # The newest report may be of a load that is known to be over: rank 0 commands when all have joined.
            if self._rank == 0 or self._status.is_commanded:
                bound_s = min(bound_s, self._status.process_bound_s())
            if silent_s > bound_s:
                return (
                    f"rank {rank} stands still: its process is frozen or cut off, nothing came from it for "
                    f"{silent_s:.0f} s (bound {bound_s:g} s), last in stage {stage} of step {step + 1}"
                )
            suspect = suspect or silent_s > SUSPECT_S
            if problem is not None:
                hanging.append(f"rank {rank} stands still: {problem}")
        if self._rank != 0:
            return None
        if (problem := self._status.problem()) is not None:
            hanging.append(f"rank 0 stands still: {problem}")
        return "; ".join(hanging) if hanging and not suspect else None


def _key(rank: int) -> str:
    # A store of torchrun's outlives an attempt that failed.
    return f"grpo_trainer/report/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{rank}"


def _end_run(message: str) -> None:
    """End this process at once: nothing can free a main thread that hangs in a collective."""
    text = "%s; see its log and its machine. All ranks end; go on with --resume"
    line = threading.Thread(target=log.error, args=(text, message), daemon=True)  # that thread may hold the log's lock
    line.start()
    line.join(CLOSING_S)
    os._exit(1)
