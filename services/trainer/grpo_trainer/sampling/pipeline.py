"""Groups in flight, the staleness bound and the carry-over buffer.

At most (max_staleness + 1) × groups_per_batch groups are out: dispatched, and not yet used, dropped or failed. While a
batch is being trained on, the bound is max_staleness × groups_per_batch: a group dispatched now and used that many
batches later is exactly as old as it may be, and any further group would be dropped. With `max_staleness` 0 the groups
of a batch are dispatched when the batch is requested: exactly synchronous GRPO. Above 0 a finished group that is not
needed yet is carried over, and a batch waits for the groups that the next version would make stale. With dynamic
sampling a finished group that teaches nothing is no longer out: the next prompt takes its place (refills.py). So it
does when a prompt is dropped because it kills servers (suspects.py), and for a group of episodes with too few totals.

Waits for: finished groups (`next_batch`), the end of sampling (`settle`), room below the bound (`_fill`). Unblocked by:
a job's end, a group's last sample, `policy_updated`.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from grpo_proto import Sampling

from ..algorithm.scores import accuracy
from ..algorithm.sequences import Group
from ..algorithm.spread import teaches
from ..algorithm.staleness import is_stale, mask_stale_turns
from ..data.difficulty import Known
from ..data.order import PromptOrder
from ..errors import RunError
from ..group_trace import GroupTrace
from .batch import Batch, Counts
from .dropped import Dropped
from .refills import Refills
from .reward import RewardStage, check_enough_scored
from .sampler import Asked, Sampler
from .teachers import Teachers
from .tracing import Tracing

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PipelineLimits:
    groups_per_batch: int
    max_staleness: int
    groups_per_job: int
    num_generations: int
    min_scored_share: float
    max_steps: int
    min_group_size: int = 0
    """A group with fewer totals is dropped."""
    stale_tokens: Literal["drop", "mask"] = "drop"
    """What becomes of tokens beyond the bound: their group is dropped, or their turns are masked."""

    def max_groups_out(self, version: int, *, training: bool) -> int:
        """Return how many groups may be out, all for future steps. Policy `version` trains step `version`."""
        ahead = min(self.max_staleness, self.max_steps - version)
        return (ahead + (not training)) * self.groups_per_batch


@dataclass
class Cursor:
    """The run's position in its prompts: a checkpoint stores it so that no prompt is repeated or skipped."""

    next_position: int = 0
    unused: list[int] = field(default_factory=list)
    """Positions dispatched but not used: sampled again after a resume."""
    difficulty: Known = field(default_factory=list)
    """What is known of the prompts from the batches that were trained on."""


class Pipeline:
    """Rank 0's source of batches. Runs in the event loop's thread; `next_batch` and friends are coroutines."""

    def __init__(
        self,
        sampler: Sampler,
        reward: RewardStage,
        prompts: PromptOrder,
        sampling: Sampling,
        limits: PipelineLimits,
        cursor: Cursor,
        tracing: Tracing,
        refills: Refills | None = None,
        teachers: Teachers | None = None,
    ):
        self.tracing = tracing
        self.refills, self.teachers = refills or Refills(), teachers
        self.sampler, self.reward, self.prompts, self.sampling, self.limits = sampler, reward, prompts, sampling, limits
        self.counts = Counts()
        self.version = 0
        self._next_position = cursor.next_position
        self._again = deque(sorted(cursor.unused))
        self._finished: deque[Group] = deque()
        self._dropped = Dropped(limits.min_group_size)
        self._taken: list[Group] = []
        """Groups of the last batch, and those they replaced. `stop` may end their traces again, which does nothing."""
        self._taken_is_used = False
        self._out: dict[int, int] = {}
        """Position of each group that is sampled or scored, and the policy version it was dispatched for."""
        self._jobs: set[asyncio.Task[None]] = set()
        self._sampling_since_s: dict[int, float] = {}
        self._scoring_since_s: dict[int, float] = {}
        self._wanted = 0
        self._training = self._settling = False
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def lacks_only_scores(self) -> bool:
        """Whether enough groups for the batch are sampled, and some of them still wait for their rewards."""
        sampled = len(self._finished) + len(self._scoring_since_s)
        return len(self._finished) < self._wanted <= sampled

    def oldest_since_s(self, doing: Literal["sampling", "scoring"]) -> float | None:
        """When the group that has waited longest for samples or scores began to wait, in seconds since the epoch."""
        since_s = self._sampling_since_s if doing == "sampling" else self._scoring_since_s
        return min(list(since_s.values()), default=None)

    def cursor(self) -> Cursor:
        """Return the position that a checkpoint stores. Call it in the event loop's thread."""
        taken = [] if self._taken_is_used else self._taken
        waiting = [group.position for group in [*taken, *self._finished, *self.refills.replaced]]
        known = self.prompts.difficulty.state() if self.prompts.difficulty else []
        return Cursor(self._next_position, sorted([*self._out, *waiting, *self._again]), known)

    def batch_used(self) -> None:
        """Mark the last batch as trained on. A checkpoint before this call counts its groups as unused.

        What it shows of the difficulty of prompts counts from here on. Call it in the event loop's thread.
        """
        self._taken_is_used = True
        for group in sorted(self._taken, key=lambda group: group.position):
            self.prompts.learn(group.position, solved=accuracy([group]), teaches=teaches(group))

    async def settle(self) -> None:
        """Wait until nothing is sampled, and dispatch nothing until the next policy, which then continues no sequence.

        Returns early when a job has failed: `next_batch` raises its error.
        """
        self._settling = True
        # Not by `_sampling_since_s`, which lacks the groups of a job that has not begun.
        while len(self._out) > len(self._scoring_since_s) and self._failure is None:
            self._changed.clear()
            await self._changed.wait()

    async def policy_updated(self, version: int) -> None:
        """Sample groups with `version` from now on: its push has committed."""
        self._settling = False
        # The same version pushed again: the batch that was taken is not trained on yet.
        self._training &= version == self.version
        self.version = version
        if self.limits.max_staleness > 0:
            self._fill()

    async def next_batch(self) -> Batch:
        """Return the groups of the next step, none staler than the bound.

        Raises the error of a failed job, and RunError when too few samples have a score; no group is used then.
        """
        started = time.monotonic()
        self._wanted = self.limits.groups_per_batch
        while True:
            self._drop_stale()
            self._fill()
            if self._failure is not None:
                raise self._failure
            if len(self._finished) >= self.limits.groups_per_batch and not self._lacks_due_groups():
                break
            self._dropped.check(self._finished, self.limits.groups_per_batch, self.limits.min_scored_share)
            self._changed.clear()
            await self._changed.wait()
        taken, replaced = self._choose()
        check_enough_scored([*taken, *replaced, *self._dropped.too_small], self.limits.min_scored_share)
        positions = {group.position for group in [*taken, *replaced]}
        self._finished = deque(group for group in self._finished if group.position not in positions)
        self.refills.batch_taken()
        self._wanted, self._training = 0, True
        self.counts.used += len(taken)
        self.counts.replaced += len(replaced)
        if self.limits.max_staleness > 0:
            self._fill()
        for group in taken:
            group.trace.enter("train")
        for group in replaced:
            group.trace.end("no spread")
        self._taken, self._taken_is_used = [*taken, *replaced], False
        ready = time.monotonic()
        last_sampled = max(*(group.sampled_at_s for group in taken), started)
        waiting = [self._out, self._finished, self.refills.replaced, self._again]
        num_drawn = self._next_position - sum(map(len, waiting))
        too_small, dropped_tokens = self._dropped.batch_taken()
        return Batch(
            taken,
            reward_s=ready - last_sampled,
            epoch=num_drawn / len(self.prompts.rows),
            of_prompts=self.prompts.metrics(num_drawn - 1),
            teacher_s=max(0.0, *(group.taught_at_s - last_sampled for group in taken)),
            replaced=replaced,
            too_small=too_small,
            dropped_tokens=dropped_tokens,
        )

    def _choose(self) -> tuple[list[Group], list[Group]]:
        """Choose the groups of the batch out of the finished ones, and those that they replace."""
        # Groups that the next version would make stale go first, then the order in which they finished.
        by_need = sorted(self._finished, key=lambda group: not group.is_older_than(self._oldest_next))
        taken, replaced = self.refills.choose(by_need, self.limits.groups_per_batch, oldest=self._oldest)
        if lacking := sum(not self.refills.teaches(group) for group in taken):
            log.warning(
                "step %d: %d of %d groups have equal rewards, after %d others were replaced (algorithm.max_refills): "
                "nothing is learnt from them; take prompts that the policy solves sometimes",
                *(self.version, lacking, len(taken), len(replaced)),
            )
        # Sort by prompt: the batch must not depend on which request returned first.
        return sorted(taken, key=lambda group: group.position), replaced

    @property
    def _oldest(self) -> int:
        """The oldest version that the current version's batch may use."""
        return self.version - self.limits.max_staleness

    @property
    def _oldest_next(self) -> int:
        """The oldest version that the next version's batch may use."""
        return self._oldest + 1

    def _lacks_due_groups(self) -> bool:
        """Whether the batch has to wait for groups in flight that the next version would make stale.

        Without the wait, short groups would overtake long ones until those were dropped: the policy would be trained on
        shorter completions than it samples.
        """
        in_flight = any(version < self._oldest_next for version in self._out.values())
        finished = sum(group.is_older_than(self._oldest_next) for group in self._finished)
        return in_flight and finished < self.limits.groups_per_batch

    async def stop(self) -> None:
        """Cancel the requests in flight; a server aborts a request when its client disconnects."""
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        for group in self._taken:
            group.trace.end("trained" if self._taken_is_used else "unused")
        for group in [*self._finished, *self.refills.replaced]:
            group.trace.end("unused")

    def _drop_stale(self) -> None:
        oldest = self._oldest
        if self.limits.stale_tokens == "mask":
            for group in self._finished:
                mask_stale_turns(group, oldest)
        stale = [group for group in self._finished if group.is_older_than(oldest) or is_stale(group)]
        if stale:
            self.counts.dropped_stale += len(stale)
            log.info("dropped %d groups, sampled by a policy older than version %d", len(stale), oldest)
            positions = {group.position for group in stale}
            self._finished = deque(group for group in self._finished if group.position not in positions)
        for group in stale:
            group.trace.end("stale")
            self._dropped.count(group, "stale")

    def _fill(self) -> None:
        """Dispatch as many groups as the bound allows; with bound 0 only those that the requested batch lacks."""
        while True:
            out = len(self._out) + len(self._finished)
            room = self.limits.max_groups_out(self.version, training=self._training) - out
            if self.limits.max_staleness == 0:
                room = min(room, self._wanted - out)
            if room <= 0 or self._settling:
                return
            positions = [self._take_position() for _ in range(min(room, self.limits.groups_per_job))]
            # The step that will train on these groups, unless some are dropped: groups are used in order.
            step = self.version + self._training + out // self.limits.groups_per_batch
            self._out |= dict.fromkeys(positions, self.version)
            self.counts.issued += len(positions)
            job = asyncio.create_task(self._work(positions, step))
            self._jobs.add(job)
            job.add_done_callback(self._done)

    def _take_position(self) -> int:
        if self._again:
            return self._again.popleft()
        position = self.prompts.next_from(self._next_position)
        self._next_position = position + 1
        return position

    async def _work(self, positions: Sequence[int], step: int) -> None:
        asked = [
            Asked(position, self.prompts.row_at(position), self.prompts.seed_at(position), self.tracing.group(position))
            for position in positions
        ]
        traces = [one.trace for one in asked]
        try:
            self._sampling_since_s |= dict.fromkeys(positions, time.time())
            _enter("sample", traces)
            groups = await self.sampler.sample(
                asked, min_version=self.version, n=self.limits.num_generations, sampling=self.sampling
            )
            self._move_on(positions)
            positions = self._without_dropped(asked, groups)
            traces = [group.trace for group in groups]
            self._scoring_since_s |= dict.fromkeys(positions, time.time())
            _enter("score", traces)
            await self._score(groups, step=step)
            _enter("wait", traces)
        except BaseException as error:
            for trace in traces:
                trace.end(type(error).__name__, failed=isinstance(error, Exception))
            if isinstance(error, RunError) and not self._wanted:  # no batch waits, and a push may fix it
                log.warning("will sample %d groups again later: %s", len(positions), error)
                self._forget(positions)
                self._again = deque(sorted([*self._again, *positions]))
                self.counts.issued -= len(positions)
                return
            raise
        finally:
            self._move_on(positions)
        self._forget(positions)
        large = self._dropped.large_enough(groups)
        self.counts.dropped_small += len(groups) - len(large)
        kept = self.refills.keep(large)
        self._finished.extend(kept)
        if len(kept) < len(groups):
            self._fill()

    def _without_dropped(self, asked: Sequence[Asked], groups: Sequence[Group]) -> list[int]:
        """Count the prompts that the sampler has dropped, and let the next ones take their places at once.

        Returns the positions of `groups`.
        """
        sampled = [group.position for group in groups]
        dropped = [one for one in asked if one.position not in sampled]
        for one in dropped:
            one.trace.end("crash", failed=True)
        self._forget([one.position for one in dropped])
        self.counts.dropped_crash += len(dropped)
        if dropped:
            self._fill()
        return sampled

    async def _score(self, groups: list[Group], *, step: int) -> None:
        """Get the rewards, and at the same time the teachers' logprobs."""
        teaching = asyncio.create_task(self.teachers.score(groups)) if self.teachers else None
        try:
            await self.reward.score(groups, step=step)
            if teaching is not None:
                await teaching
        finally:
            if teaching is not None:
                teaching.cancel()

    def _forget(self, positions: Sequence[int]) -> None:
        for position in positions:
            del self._out[position]

    def _move_on(self, positions: Sequence[int]) -> None:
        """Stop counting these positions as sampling or scoring."""
        for position in positions:
            self._sampling_since_s.pop(position, None)
            self._scoring_since_s.pop(position, None)
        if self._settling:
            self._changed.set()

    def _done(self, job: asyncio.Task[None]) -> None:
        self._jobs.discard(job)
        if not job.cancelled() and (error := job.exception()) is not None and self._failure is None:
            self._failure = error
        self._changed.set()


def _enter(stage: str, traces: Sequence[GroupTrace]) -> None:
    for trace in traces:
        trace.enter(stage)
