"""The state of a run: the loop's thread reports it, the routes read snapshots of it."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from ..algorithm.sequences import DropReason, Group
from ..ranks.place import WAITING_FOR_RANK, Place
from .live_history import LiveHistory
from .missing_scores import MissingScores

STALENESS_BUCKETS = (0, 1, 2, 4, 8, 16)
"""Upper bounds of the histogram of sample staleness, in versions."""
MAX_REASON = 200
"""Longest reason kept for the absence of a server, in characters."""


@dataclass(frozen=True)
class StartPhase:
    """A part of the start, before the loop's heartbeat: a load, silent until it is done, or a wait, which beats. Both
    end at `until_s`; times are in seconds since the epoch."""

    doing: str
    since_s: float
    until_s: float
    silent: bool
    """No heartbeat comes meanwhile: `until_s` is the bound instead."""
    reason: str | None = None
    """Why the wait is not over."""

    def __str__(self) -> str:
        words = f"{self.doing}: {self.reason}" if self.reason else self.doing
        return f"{words}; since {_clock(self.since_s)}, at most until {_clock(self.until_s)}"


@dataclass(frozen=True)
class Snapshot:
    """The state of a run at one moment. Counters are of this process: they begin anew when a run is resumed."""

    run: str
    max_steps: int
    step: int = 0
    policy_version: int = 0
    stage: str = "starting"
    stage_since_s: float = 0.0
    """When the stage began, in seconds since the epoch."""
    start: StartPhase | None = None
    """None once the loop has begun."""
    ready: bool = False
    end_reason: str | None = None
    heartbeat_age_s: float = 0.0
    heartbeat_timestamp_s: float = 0.0
    reward: float | None = None
    accuracy: float | None = None
    seconds_per_stage: Mapping[str, float] = field(default_factory=dict)
    tokens: int = 0
    is_done: bool = False
    """All steps are done."""
    push_s: float | None = None
    """Seconds of the last push."""
    last_push_bytes: int = 0
    push_bytes: int = 0
    """Bytes of all pushes."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """One of `DROP_REASONS` → samples left out; reasons without samples are absent."""
    staleness_counts: tuple[int, ...] = (0,) * (len(STALENESS_BUCKETS) + 1)
    """Samples per bucket, not cumulative; the last bucket is beyond the last bound."""
    staleness_sum: int = 0


class RunStatus:
    """Thread-safe. Every call of the loop is a heartbeat; `heartbeat_bound_s` without one means the loop is stuck.

    `silent_stages` are the stages that cannot beat, each with its own bound. `max_steps` is 0 until the data
    have been read. `now` is the clock of all bounds, in seconds.
    """

    def __init__(
        self,
        run: str,
        *,
        heartbeat_bound_s: float,
        silent_stages: Mapping[str, float] = MappingProxyType({}),
        max_steps: int = 0,
        step: int = 0,
        mask_truncated: bool = False,
        now: Callable[[], float] = time.monotonic,
    ):
        self._now = now
        self._heartbeat_bound_s, self._silent_stages = heartbeat_bound_s, silent_stages
        self._commanded_bound_s: float | None = None
        self._waits_for_rank = False
        self._lock = threading.Lock()
        self.history = LiveHistory(mask_truncated=mask_truncated)
        self._state = Snapshot(run=run, max_steps=max_steps, step=step, stage_since_s=time.time())
        self._beat_monotonic = now()
        self._beat_epoch = time.time()
        self._phase_ends_monotonic = 0.0
        self._watched: dict[str, Callable[[], bool]] = {}
        self._sources: dict[str, Callable[[], Any]] = {}

    @property
    def heartbeat_bound_s(self) -> float:
        """Longest time between heartbeats in the current stage, in seconds."""
        return self._bound_s_in(self._state.stage)

    def _bound_s_in(self, stage: str) -> float:
        return self._commanded_bound_s or self._silent_stages.get(stage, self._heartbeat_bound_s)

    def beat(self) -> None:
        """Report a heartbeat from a long wait inside a stage."""
        with self._lock:
            self._touch()

    def enter_phase(self, doing: str, *, limit_s: float, silent: bool = True) -> None:
        """Begin a part of the start, see `StartPhase`. The next phase, or the first stage of the loop, ends it.

        A silent phase has `limit_s` instead of a heartbeat: a thread that always beats would also beat for a load that
        hangs.
        """
        now_s = time.time()
        with self._lock:
            self._phase_ends_monotonic = self._now() + limit_s
        phase = StartPhase(doing, since_s=now_s, until_s=now_s + limit_s, silent=silent)
        self._update(stage=doing, stage_since_s=now_s, start=phase)

    def still_waiting(self, doing: str, reason: str | None) -> None:
        """Report from within a wait, about once a second, that it continues: for `doing`, and why."""
        with self._lock:
            self._touch()
            if self._state.start is not None:
                phase = replace(self._state.start, doing=doing, reason=reason and reason[:MAX_REASON])
                self._state = replace(self._state, stage=doing, start=phase)

    def know_run(self, *, max_steps: int, step: int) -> None:
        """Report the length of the run and the steps done."""
        self._update(max_steps=max_steps, step=step)

    @contextmanager
    def watching(self, name: str, is_alive: Callable[[], bool]) -> Iterator[None]:
        """Count the process as dead when `is_alive`, for instance of a thread, returns False meanwhile."""
        with self._lock:
            self._watched[name] = is_alive
        try:
            yield
        finally:
            with self._lock:
                del self._watched[name]

    def show(self, name: str, source: Callable[[], Any]) -> None:
        """Show plain JSON from `source` on the live page. It must be fast: the server's thread calls it."""
        with self._lock:
            self._sources[name] = source

    def sources(self) -> dict[str, Callable[[], Any]]:
        with self._lock:
            return dict(self._sources)

    def enter_stage(self, name: str) -> None:
        self._commanded_bound_s = None
        self._update(stage=name, stage_since_s=time.time(), start=None)

    def place(self) -> Place:
        """Return where the main thread is."""
        state = self.snapshot()
        if self._waits_for_rank:
            return Place(WAITING_FOR_RANK, state.step, self._heartbeat_bound_s)
        return Place(state.stage, state.step, self._load_limit_s() or self._bound_s_in(state.stage))

    def process_bound_s(self) -> float:
        """Return how long the whole process may give no sign, in seconds.

        Other threads go on beside a save or a push, however long that is; an import may hold all of them up.
        """
        return (None if self._waits_for_rank else self._load_limit_s()) or self._heartbeat_bound_s

    @property
    def is_commanded(self) -> bool:
        """Whether rank 0 has given this rank something to do: its own load is over then."""
        return self._commanded_bound_s is not None

    def _load_limit_s(self) -> float | None:
        start = self._state.start
        return start.until_s - start.since_s if start is not None and start.silent else None

    @contextmanager
    def waiting_for_rank(self) -> Iterator[None]:
        """Wait inside for another rank, without a bound: `ranks/silent_ranks.py` notices when that stands still."""
        self._waits_for_rank = True
        try:
            yield
        finally:
            self.beat()
            self._waits_for_rank = False

    def go_to(self, place: Place) -> None:
        """Do what rank 0 commands in its stage, within the bound that it has there."""
        self._commanded_bound_s = place.bound_s
        self._update(stage=place.stage, step=place.step, stage_since_s=time.time(), start=None)

    def lacks(self, stage: Literal["wait", "score"]) -> None:
        """Report what the wait for a batch lacks: samples or scores. Does nothing in any other stage."""
        if {self._state.stage, stage} == {"wait", "score"}:
            self.enter_stage(stage)

    def ended(self, reason: str | None) -> None:
        """Report not ready; `reason` is what ended the run early. The first reason stays."""
        with self._lock:
            reason = self._state.end_reason or reason
        self._update(ready=False, end_reason=reason)

    def done(self) -> None:
        """Report that all steps are done, and model and report written."""
        self._update(is_done=True)

    def pushed(self, version: int, *, seconds: float, num_bytes: int) -> None:
        """Report a committed push: `num_bytes` to each server in `seconds`. The first push makes the run ready."""
        with self._lock:
            self._touch()
            total = self._state.push_bytes + num_bytes
            self._state = replace(
                self._state,
                ready=True,
                policy_version=version,
                push_s=seconds,
                push_bytes=total,
                last_push_bytes=num_bytes,
            )

    def dropped(self, reason: DropReason, num_samples: int) -> None:
        """Report samples that were left out; each counts once."""
        with self._lock:
            self._touch()
            counts = dict(self._state.dropped)
            counts[reason] = counts.get(reason, 0) + num_samples
            self._state = replace(self._state, dropped=counts)

    def step_done(
        self,
        step: int,
        metrics: Mapping[str, float],
        *,
        seconds_per_stage: Mapping[str, float],
        staleness: Iterable[int] = (),
        num_tokens: int = 0,
        groups: Sequence[Group] = (),
        missing: Sequence[MissingScores] = (),
    ) -> None:
        """Report a finished step. `seconds_per_stage` is of this process, `staleness` has one number per sample.

        `groups` have rewards and advantages, and a few of them are kept for the live page; `missing` are the scores
        that rewards did not give.
        """
        self.history.add(step, metrics)
        self.history.show_groups(step, groups)
        self.history.show_missing(missing)
        with self._lock:
            self._touch()
            state = self._state
            counts, total = list(state.staleness_counts), state.staleness_sum
            for lag in staleness:
                bucket = next((i for i, bound in enumerate(STALENESS_BUCKETS) if lag <= bound), len(STALENESS_BUCKETS))
                counts[bucket] += 1
                total += lag
            self._state = replace(
                state,
                step=step,
                reward=metrics.get("reward"),
                accuracy=metrics.get("accuracy"),
                seconds_per_stage=dict(seconds_per_stage),
                tokens=state.tokens + num_tokens,
                staleness_counts=tuple(counts),
                staleness_sum=total,
            )

    def snapshot(self) -> Snapshot:
        with self._lock:
            age_s = self._now() - self._beat_monotonic
            return replace(self._state, heartbeat_age_s=age_s, heartbeat_timestamp_s=self._beat_epoch)

    def has_heartbeat(self) -> bool:
        """False while a silent part of the start is inside its limit: an old heartbeat means nothing then."""
        start = self.snapshot().start
        return start is None or not start.silent or self.problem() is not None

    def problem(self) -> str | None:
        """Return why the process counts as dead, or None."""
        with self._lock:
            watched = dict(self._watched)
        for name, is_alive in watched.items():
            if not is_alive():
                return f"{name} is dead"
        if self._waits_for_rank:
            return None
        state = self.snapshot()
        if state.start is not None and state.start.silent:
            with self._lock:
                late = self._now() > self._phase_ends_monotonic
            return f"past its limit: {state.start}" if late else None
        bound_s = self._bound_s_in(state.stage)
        if state.heartbeat_age_s > bound_s:
            return (
                f"no heartbeat for {state.heartbeat_age_s:.0f} s (bound {bound_s:g} s), "
                f"in stage {state.stage} of step {state.step + 1}"
            )
        return None

    def _update(self, **changes: object) -> None:
        with self._lock:
            self._touch()
            self._state = replace(self._state, **changes)  # type: ignore[arg-type]

    def _touch(self) -> None:
        self._beat_monotonic, self._beat_epoch = self._now(), time.time()


def _clock(moment_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(moment_s))
