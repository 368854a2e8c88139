"""What the loop tells and the trainer's routes read: one thread writes, others take snapshots."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from ..algorithm.sequences import DropReason, Group
from .live_history import LiveHistory
from .missing_scores import MissingScores

STALENESS_BUCKETS = (0, 1, 2, 4, 8, 16)
"""Upper bounds of the histogram of sample staleness, in versions."""
MAX_REASON = 200
"""Longest text kept of why a server is not there, in characters."""


@dataclass(frozen=True)
class StartPhase:
    """A part of the start, before the loop has a heartbeat: a load that says nothing until it is done, or a wait that
    beats. Either ends at `until_s`; both times are in seconds since the epoch."""

    doing: str
    since_s: float
    until_s: float
    silent: bool
    """Nothing beats meanwhile: `until_s` is the bound, in place of the heartbeat's."""
    reason: str | None = None
    """Why a wait is not over yet."""

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
    """The run has come to its end."""
    push_s: float | None = None
    """Seconds of the last push."""
    last_push_bytes: int = 0
    push_bytes: int = 0
    """Bytes of all pushes."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """One of `DROP_REASONS` → samples that took no part; without the reasons that there were none for."""
    staleness_counts: tuple[int, ...] = (0,) * (len(STALENESS_BUCKETS) + 1)
    """Samples per bucket, not cumulative; the last one is beyond the last bound."""
    staleness_sum: int = 0


class RunStatus:
    """Thread-safe. Every call of the loop is a heartbeat; `heartbeat_bound_s` without one means the loop is stuck.

    `silent_stages` are those that cannot beat, each with a bound of its own.

    `max_steps` is 0 until the data have been read.
    """

    def __init__(
        self,
        run: str,
        *,
        heartbeat_bound_s: float,
        silent_stages: Mapping[str, float] = MappingProxyType({}),
        max_steps: int = 0,
        step: int = 0,
    ):
        self._heartbeat_bound_s, self._silent_stages = heartbeat_bound_s, silent_stages
        self._lock = threading.Lock()
        self.history = LiveHistory()
        self._state = Snapshot(run=run, max_steps=max_steps, step=step, stage_since_s=time.time())
        self._beat_monotonic = time.monotonic()
        self._beat_epoch = time.time()
        self._phase_ends_monotonic = 0.0
        self._watched: dict[str, Callable[[], bool]] = {}
        self._sources: dict[str, Callable[[], Any]] = {}

    @property
    def heartbeat_bound_s(self) -> float:
        """Longest time between heartbeats in the stage that the loop is in, in seconds."""
        return self._bound_s_in(self._state.stage)

    def _bound_s_in(self, stage: str) -> float:
        return self._silent_stages.get(stage, self._heartbeat_bound_s)

    def beat(self) -> None:
        """The loop is alive: for long waits inside a stage."""
        with self._lock:
            self._touch()

    def enter_phase(self, doing: str, *, limit_s: float, silent: bool = True) -> None:
        """A part of the start begins: see `StartPhase`. The next phase, or the first stage of the loop, ends it.

        A silent one gets no heartbeat from anybody: a thread that always beats would say that a load goes on when it
        hangs. It has `limit_s` instead.
        """
        now_s = time.time()
        with self._lock:
            self._phase_ends_monotonic = time.monotonic() + limit_s
        phase = StartPhase(doing, since_s=now_s, until_s=now_s + limit_s, silent=silent)
        self._update(stage=doing, stage_since_s=now_s, start=phase)

    def still_waiting(self, doing: str, reason: str | None) -> None:
        """Called by the wait itself, once a second or so: it goes on, for `doing`, and why."""
        with self._lock:
            self._touch()
            if self._state.start is not None:
                phase = replace(self._state.start, doing=doing, reason=reason and reason[:MAX_REASON])
                self._state = replace(self._state, stage=doing, start=phase)

    def know_run(self, *, max_steps: int, step: int) -> None:
        """How long the run is, and how many steps are done."""
        self._update(max_steps=max_steps, step=step)

    @contextmanager
    def watching(self, name: str, is_alive: Callable[[], bool]) -> Iterator[None]:
        """Count the process as dead when `is_alive` says False meanwhile, for instance a thread's."""
        with self._lock:
            self._watched[name] = is_alive
        try:
            yield
        finally:
            with self._lock:
                del self._watched[name]

    def show(self, name: str, source: Callable[[], Any]) -> None:
        """Show on the live page what `source` says, as plain JSON. It is called by the server's thread: be quick."""
        with self._lock:
            self._sources[name] = source

    def sources(self) -> dict[str, Callable[[], Any]]:
        with self._lock:
            return dict(self._sources)

    def enter_stage(self, name: str) -> None:
        self._update(stage=name, stage_since_s=time.time(), start=None)

    def lacks(self, stage: Literal["wait", "score"]) -> None:
        """What the loop's wait for a batch lacks now: samples or scores. Nothing while it waits for something else."""
        if {self._state.stage, stage} == {"wait", "score"}:
            self.enter_stage(stage)

    def ended(self, reason: str | None) -> None:
        """Not ready any more; `reason` says what ended the run before its end. The first reason stays."""
        with self._lock:
            reason = self._state.end_reason or reason
        self._update(ready=False, end_reason=reason)

    def done(self) -> None:
        """All steps are made, and the model and the report are written."""
        self._update(is_done=True)

    def pushed(self, version: int, *, seconds: float, num_bytes: int) -> None:
        """A push committed: `num_bytes` were sent to each server in `seconds`. With the first one the run is ready."""
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
        """Samples that took no part; each counts once."""
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
        """`seconds_per_stage` is of this process, `staleness` one number per sample of this step.

        `missing` are the scores that rewards did not give.
        `groups` are the step's, with rewards and advantages; a few of them are kept for the live page.
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
            age_s = time.monotonic() - self._beat_monotonic
            return replace(self._state, heartbeat_age_s=age_s, heartbeat_timestamp_s=self._beat_epoch)

    def has_heartbeat(self) -> bool:
        """False while a silent part of the start is inside its limit: an old heartbeat means nothing then."""
        start = self.snapshot().start
        return start is None or not start.silent or self.problem() is not None

    def problem(self) -> str | None:
        """Why the process counts as dead, or None."""
        with self._lock:
            watched = dict(self._watched)
        for name, is_alive in watched.items():
            if not is_alive():
                return f"{name} is dead"
        state = self.snapshot()
        if state.start is not None and state.start.silent:
            with self._lock:
                late = time.monotonic() > self._phase_ends_monotonic
            return f"it takes too long: {state.start}" if late else None
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
        self._beat_monotonic, self._beat_epoch = time.monotonic(), time.time()


def _clock(moment_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(moment_s))
