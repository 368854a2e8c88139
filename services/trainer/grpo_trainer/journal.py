"""Rank 0's book-keeping: record what a run did and where its time went, and show both while it runs."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import Any, Self

from .algorithm.estimators import estimator_of
from .algorithm.sequences import DROP_REASONS, Group
from .config.run_config import RunConfig
from .errors import DiskError
from .fleet.push import PushResult
from .observe.completions import CompletionLog
from .observe.dataset_metrics import dataset_metrics
from .observe.decisions import Decision, DecisionLog
from .observe.dynamic_sampling import dynamic_sampling_metrics
from .observe.episode_metrics import episode_metrics
from .observe.learning import LearningWatch
from .observe.live_warnings import redacting
from .observe.metrics import count_tokens, merge_updates, rollout_metrics, staleness_of
from .observe.missing_scores import MissingScores, missing_scores
from .observe.progress import Progress
from .observe.run_files import COMPLETIONS_FILE, EVAL_COMPLETIONS_FILE
from .observe.run_status import RunStatus
from .observe.sinks import open_sinks
from .observe.stage_clock import StageClock
from .observe.summary import RunTotals
from .ranks.stop_signal import StopRequested, StopSignal
from .sampling.batch import Batch, Counts

log = logging.getLogger(__name__)


class Journal:
    """Use as a context manager. Collects metrics during a step; `finish_step` writes them.

    A log that cannot be written, as on a full disk, ends no step: the error is logged and kept in `failure`, so that
    the loop saves the run before it ends. Leaving the context raises it when nothing else has.
    """

    def __init__(
        self,
        config: RunConfig,
        status: RunStatus,
        stop: StopSignal,
        *,
        max_steps: int,
        resumed_step: int | None,
        totals: RunTotals,
    ):
        run_dir, self.config, self.status, self.totals = config.run_dir, config, status, totals
        first_step = (resumed_step or 0) + 1
        self.progress = Progress(max_steps, first_step=first_step, enabled=config.logging.progress)
        self.clock = StageClock(earlier_totals=totals.seconds_per_stage, on_stage=self._enter_stage)
        self.sinks = open_sinks(
            config.logging, run_dir, resumed_step=resumed_step, facts=config.model_dump(mode="json")
        )
        self.completions: CompletionLog | None = None
        self.eval_completions: CompletionLog | None = None
        part_mib = config.logging.completions_part_mib
        if config.logging.log_completions:
            self.completions = CompletionLog(run_dir / COMPLETIONS_FILE, resumed_step=resumed_step, part_mib=part_mib)
        if config.logging.log_completions and config.has_held_out_rows:
            # Without its metrics an evaluation is made again: a kill came between the two.
            redone = resumed_step is not None and totals.evaluated_step != resumed_step
            self.eval_completions = CompletionLog(
                run_dir / EVAL_COMPLETIONS_FILE,
                resumed_step=resumed_step - 1 if redone and resumed_step else resumed_step,
                part_mib=part_mib,
            )
        self.decisions = DecisionLog(run_dir, resumed_step=resumed_step)
        untaught = config.untaught
        if estimator_of(config.algorithm).learns_from_equal_rewards:
            untaught = []
        self.learning = LearningWatch(config.guards, untaught=untaught)
        if resumed_step is not None:
            self.learning.restore(run_dir)
        self._collected: dict[str, float] = {}
        self.has_updates = False
        """Whether the step that is being made has updates."""
        self._batch: Batch | None = None
        self._batch_version = 0
        self._lost_before, self._counts = 0, Counts()
        self._stop, self._open = stop, ExitStack()
        self.failure: DiskError | None = None
        """The first error of a log."""
        self._ended_by: str | None = None

    def __enter__(self) -> Self:
        self._open.callback(self._close, lambda: self.sinks.close(self._stop, failure=self._ended_by))
        for completions in (self.completions, self.eval_completions):
            if completions:
                self._open.callback(self._close, completions.close)
        self._open.callback(self._close, self.decisions.close)
        self._open.enter_context(self.progress)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, StopRequested):
            self._ended_by = redacting().redact(f"{type(error).__name__}: {error}")  # trackers get this text
        self.status.ended(self._ended_by)
        self._open.close()
        if error is None and self.failure is not None:
            raise self.failure

    def _close(self, close: Callable[[], None]) -> None:
        with self._keeping_failure():
            close()

    @contextmanager
    def _keeping_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            failure = DiskError.of(error, run_dir=self.config.run_dir)
            log.error("%s", failure.message)
            self.failure = self.failure or failure

    def stage(self, name: str) -> AbstractContextManager[None]:
        return self.clock.stage(name)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add metrics to the current step."""
        self._collected |= metrics

    def batch_arrived(
        self, batch: Batch, reward_metrics: Mapping[str, float], counts: Counts, *, lost_requests: int, version: int
    ) -> None:
        """Record the step's samples, with rewards and advantages. `version` is the policy to train on them.

        `lost_requests`: the failed attempts to sample; like `counts`, since the process, or this journal, began.
        """
        self.clock.move(batch.reward_s, origin="wait", to="score")
        num_generations, mask_truncated = (
            self.config.rollout.num_generations,
            self.config.algorithm.mask_truncated_completions,
        )
        before, self._counts = self._counts, replace(counts)
        self.add({"rollout/lost_requests": lost_requests - self._lost_before})
        self._lost_before = lost_requests
        self._batch, self._batch_version = batch, version
        self.add({"epoch": batch.epoch, **batch.of_prompts})
        self.add(
            rollout_metrics(
                batch.groups,
                reward_names=self._reward_names(batch.groups),
                policy_version=version,
                mask_truncated=mask_truncated,
                too_small=batch.too_small,
                dropped_stale=(counts.dropped_stale - before.dropped_stale) * num_generations,
                dropped_crash=(counts.dropped_crash - before.dropped_crash) * num_generations,
            )
        )
        self.add(reward_metrics)
        if self.config.episodes:
            self.add(
                episode_metrics(
                    batch.groups,
                    batch.replaced,
                    too_small=batch.too_small,
                    dropped_tokens=batch.dropped_tokens,
                    mask_truncated=mask_truncated,
                )
            )
        self.add(dataset_metrics(batch.groups, self.config.data.datasets, taught=self.config.teachers))
        if self.config.teachers:
            self.add({"teacher/wait_s": batch.teacher_s})
        if self.config.algorithm.dynamic_sampling:
            self.add(dynamic_sampling_metrics(batch.groups, batch.replaced))
        for reason in DROP_REASONS:
            if count := int(self._collected[f"samples/dropped_{reason}"]):
                self.status.dropped(reason, count)

    def pushed(self, result: PushResult) -> None:
        self.status.pushed(result.version, seconds=result.seconds, num_bytes=result.num_bytes)
        self.add(
            {
                "weights/push_s": result.seconds,
                "weights/push_bytes": result.num_bytes,
                "weights/push_attempts": result.attempts,
                "weights/longest_silence_s": result.longest_gap_s,
                "policy_version": result.version,
            }
        )

    def updated(self, results: Sequence[Mapping[str, float]]) -> None:
        """Record the optimizer updates of a step; none for a batch of which all is masked."""
        self.has_updates = bool(results)
        self.add(merge_updates(results))

    def evaluated(self, step: int, metrics: dict[str, float], groups: Mapping[str, Sequence[Group]]) -> None:
        """Record an evaluation, with its samples by their `decoding`."""
        self.add(metrics)
        if self.eval_completions:
            with self._keeping_failure():
                self.eval_completions.write_evaluation(step, groups)
        if step == 0:
            self.totals.evaluation_before = metrics
        else:
            self.totals.evaluation_after, self.totals.evaluated_step = metrics, step

    def judge(self) -> list[Decision]:
        """Hold the samples and updates of a step against the rules of `guards`, before its policy is pushed."""
        return self.learning.step_done(self._collected, self._missing_scores())

    def decided(self, step: int, decisions: Sequence[Decision]) -> None:
        with self._keeping_failure():
            self.decisions.write(step, decisions)

    def finish_step(self, step: int) -> dict[str, float]:
        """Write the metrics collected since the last step, and return them."""
        groups, too_small = (self._batch.groups, self._batch.too_small) if self._batch else ([], [])
        missing = self._missing_scores()
        num_tokens = count_tokens(groups)
        self.totals.num_tokens += num_tokens
        metrics = {"num_tokens": self.totals.num_tokens, **self._collected, **self.clock.end_step()}
        self.totals.seconds_per_stage = self.clock.totals()
        self.totals.wall_s += metrics["step_time"]
        self._batch, self._collected, self.has_updates = None, {}, False
        if self.completions and groups:
            with self._keeping_failure():
                self.completions.write(step, [*groups, *too_small])
        for group in groups:
            group.trace.end("trained", step=step)
        with self._keeping_failure():
            self.sinks.write(step, metrics)
        episodes = [episode for group in groups for episode in group.episodes]
        self.status.step_done(
            step,
            metrics,
            seconds_per_stage=self.clock.own_totals(),
            staleness=staleness_of(episodes, self._batch_version),
            num_tokens=num_tokens,
            groups=groups if self.completions else (),
            missing=missing,
        )
        if step > 0:
            self.progress.step_done(step, metrics)
        return metrics

    def complete_step(self, step: int) -> None:
        """Add the evaluation to the last step, which the previous process has written. Drops the push's metrics."""
        collected, self._collected = self._collected, {}
        late = {key: value for key, value in collected.items() if key.startswith(("eval_", "eval/"))}
        if late:
            with self._keeping_failure():
                self.sinks.complete(step, late)
            self.status.history.complete(step, late)

    def final_totals(self) -> RunTotals:
        """Return the totals of the whole run, including the time after its last step."""
        self.totals.seconds_per_stage = self.clock.totals()
        return self.totals

    def state(self) -> dict[str, Any]:
        """Return the totals for a checkpoint; `RunTotals(**state)` restores them."""
        return asdict(self.totals)

    def _enter_stage(self, name: str) -> None:
        self.status.enter_stage(name)
        self.progress.stage(name)

    def _missing_scores(self) -> list[MissingScores]:
        batch = self._batch
        groups = [*batch.groups, *batch.replaced, *batch.too_small] if batch else []
        return missing_scores(groups, self._reward_names(groups))

    def _reward_names(self, groups: Sequence[Group]) -> list[str]:
        """The rewards of the run file, and those that episodes have brought without a weight."""
        brought = [name for group in groups for episode in group.episodes for name in episode.rewards]
        return list(dict.fromkeys([*self.config.reward_weights, *(brought if self.config.episodes else [])]))
