"""Rank 0's half of the loop: everything that calls a server. The other ranks have no orchestrator.

It owns the event loop's thread, in which sampling and scoring go on while the main thread trains.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Literal, Protocol, Self, TypeVar

from grpo_proto import Health, RewardClient, ServiceClient, ServiceError
from grpo_proto.messages.weights import Kind

from .algorithm.estimators import estimator_of
from .algorithm.spread import teaches, teaches_by_turn
from .config.run_config import RunConfig
from .data.order import PromptOrder
from .data.run_rows import rows_with_prompts
from .data.teacher_prompts import TeacherPrompts
from .episodes.sampler import new_sampler
from .fleet.adapters import AdapterNeeds
from .fleet.awaited import Awaited, wait_for_rollout_servers
from .fleet.canary import Probe, canary_prompts, sample_probes
from .fleet.event_loop import EventLoopThread
from .fleet.fleet import Fleet
from .fleet.push import WeightPusher
from .fleet.start_checks import check_distinct, check_free, check_rendezvous, check_token
from .prepared import Prepared
from .ranks.stop_signal import StopRequested, StopSignal
from .sampling.evaluation import Evaluation, eval_sets
from .sampling.pipeline import Cursor, Pipeline, PipelineLimits
from .sampling.refills import Refills
from .sampling.reward import RewardStage
from .sampling.reward_code import RewardCode
from .sampling.sampler import training_sampling
from .sampling.teachers import Teachers
from .sampling.tracing import Tracing

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

BEAT_INTERVAL_S = 1.0
"""The polling interval of the live page."""
SCORING_PROBE_INTERVAL_S = 5.0


class Status(Protocol):
    """Where rank 0 reports what it waits for; `observe/run_status.py` implements it."""

    def enter_phase(self, doing: str, *, limit_s: float, silent: bool = True) -> None: ...

    def still_waiting(self, doing: str, reason: str | None) -> None: ...

    def beat(self) -> None: ...

    def lacks(self, stage: Literal["wait", "score"]) -> None: ...

    def problem(self) -> str | None: ...


class Orchestrator:
    """Use as a context manager. `connect` waits for the servers and checks that they fit this run."""

    def __init__(
        self,
        config: RunConfig,
        *,
        prepared: Prepared,
        prompts: PromptOrder,
        cursor: Cursor,
        reward_code: RewardCode,
        trainer_id: str,
        stop: StopSignal,
        status: Status,
        base_digest: str | None,
    ):
        self.config, self.stop, self.status = config, stop, status
        self._adapter = AdapterNeeds.of(config, base_digest)
        self._prepared = prepared
        self.probe_rows = rows_with_prompts(prepared.rows, prepared.tokenizer)
        """Rows with prompts, to try things on."""
        self.tracing = Tracing(config.logging.otlp_endpoint, run=config.logging.run_name or config.run_dir.name)
        self.loop = EventLoopThread()
        self.fleet = Fleet(config.rollout.urls, min_replicas=config.rollout.min_replicas)
        self.reward = RewardStage.of(config, RewardClient(config.reward.url), code=reward_code)
        self.teachers = Teachers(config, prepared.teacher_prompts)
        self._players = AsyncExitStack()
        self.sampler, self._starting = new_sampler(
            config,
            self.fleet,
            run=trainer_id,
            log_dir=config.run_dir / "agents",
            images=prepared.images,
        )
        self._limits = PipelineLimits(
            groups_per_batch=config.rollout.groups_per_batch,
            max_staleness=config.algorithm.max_staleness,
            groups_per_job=1 if config.episodes else config.rollout.groups_per_request,
            num_generations=config.rollout.num_generations,
            min_scored_share=config.reward.min_scored_share,
            max_steps=prepared.max_steps,
            min_group_size=config.episodes.min_group_size if config.episodes else 0,
            stale_tokens=config.episodes.stale_tokens if config.episodes else "drop",
        )
        self.pipeline = self._new_pipeline(prompts, cursor)
        self.pusher = WeightPusher(
            self.fleet,
            self.loop,
            config.weights,
            trainer_id=trainer_id,
            stop=stop,
            has_heartbeat=lambda: status.problem() is None,
        )
        self.evaluation = Evaluation(
            self.sampler,
            self.reward,
            eval_sets(config, prepared.eval_rows),
            training_sampling(config.rollout),
        )
        self.reward_health: Health | None = None
        """The reward server's last answer, for display only; None before the first answer."""

    @property
    def teaches_itself(self) -> dict[str, TeacherPrompts]:
        """The datasets of which the policy is its own teacher, and what it reads then."""
        prompts, teachers = self._prepared.teacher_prompts, self.config.teachers
        return {dataset: prompts[dataset] for dataset, teacher in teachers.items() if teacher.of_itself}

    def _new_pipeline(self, prompts: PromptOrder, cursor: Cursor) -> Pipeline:
        return Pipeline(
            self.sampler,
            self.reward,
            prompts,
            training_sampling(self.config.rollout),
            self._limits,
            cursor,
            self.tracing,
            _refills(self.config),
            self.teachers,
        )

    def __enter__(self) -> Self:
        self.loop.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.loop.run(self.pipeline.stop(), timeout_s=30.0)
            self.loop.run(self._players.aclose())
            self.pusher.leave()
            self.loop.end_background()
            self.loop.run(self.fleet.close())
            self.loop.run(self.reward.client.close())
            self.loop.run(self.teachers.close())
        finally:
            self.loop.__exit__(*error)
            self.tracing.close()

    def connect(self) -> Kind:
        """Wait for the servers, and return what to push to them.

        Raises UnavailableError when a server is missing or does not fit, and UsageError when it cannot serve the run's
        adapter.
        """
        config, status, prepared = self.config, self.status, self._prepared
        reward = Awaited("the reward server", config.reward.url, "reward.url", "grpo-reward serve")
        teachers = [
            (Awaited(teacher.name, teacher.client.base_url, teacher.setting, "grpo-rollout serve MODEL"), teacher)
            for teacher in self.teachers.stages
        ]
        with self.stop.interruptible():
            self.loop.run(self._players.enter_async_context(self._starting))
            if self.reward.specs:
                self.loop.run(reward.refuse_another(self.reward.client.info))
            for server, teacher in teachers:
                self.loop.run(server.refuse_another(teacher.client.info))
            limit_s = config.rollout.startup_timeout_s
            status.enter_phase(_waiting_for_rollout(config.rollout.urls), limit_s=limit_s, silent=False)
            self._wait_for_rollout(limit_s)
            if self.reward.specs:
                limit_s = config.reward.startup_timeout_s
                first_rows = [*prepared.rows.first_rows, *prepared.eval_rows.first_rows]
                self._wait_until_fit(
                    reward, partial(self.reward.check, first_rows, of_episodes=config.episodes is not None), limit_s
                )
                for doubt in self.reward.prefix_doubts(first_rows, prepared.tokenizer):
                    log.warning("%s", doubt)
            for server, teacher in teachers:
                check = partial(teacher.check, prepared.policy, run_servers=self.fleet.infos.values())
                self._wait_until_fit(server, check, teacher.config.startup_timeout_s)
        kind = prepared.require(self.fleet, self._adapter)
        if self._adapter is not None and kind == "full":
            log.warning(
                "the rollout servers take no adapters: every push sends the whole model with the adapter added; to "
                "push the adapter alone, start the servers with --enable-lora (not possible with "
                "model.lora.target_parameters)"
            )
        self.loop.start(self.fleet.watch())
        self.loop.start(self._watch_scoring_servers())
        self.loop.start(self.pusher.lease.keep())
        return kind

    def _wait_for_rollout(self, limit_s: float) -> None:
        """Raises UnavailableError and UsageError for servers that are missing, that refuse this run, or are held."""
        weights = self.config.weights
        check_rendezvous(weights, ())
        self.loop.run(wait_for_rollout_servers(self.fleet, limit_s, still_missing=self._report_missing))
        self.loop.run(check_token(self.fleet.answered))
        check_distinct([(replica.url, replica.info) for replica in self.fleet.replicas if replica.info])
        check_free(self.fleet.infos, trainer_id=self.pusher.trainer_id, take_over=weights.take_over)
        check_rendezvous(weights, self.fleet.answered)

    def _wait_until_fit(self, server: Awaited, check: Callable[[], Awaitable[object]], limit_s: float) -> None:
        """Raises UnavailableError when the server does not come up in time, or does not fit."""
        self.status.enter_phase(server.phase, limit_s=limit_s, silent=False)
        self.loop.run(server.until_fit(check, timeout_s=limit_s, still_waiting=self.status.still_waiting))

    def _report_missing(self, missing: dict[str, str]) -> None:
        """Report the missing servers, with the reason of the first."""
        self.status.still_waiting(_waiting_for_rollout(list(missing)), next(iter(missing.values())))

    async def _watch_scoring_servers(self) -> None:
        """Probe reward server and teachers for the live page only: their stages have their own retry budgets."""
        while True:
            if self.reward.specs:
                self.reward_health = await _health(self.reward.client)
            for teacher in self.teachers.stages:
                teacher.health = await _health(teacher.client)
            await asyncio.sleep(SCORING_PROBE_INTERVAL_S)

    def settle(self) -> None:
        """Wait until the servers have sampled all that they were asked for, as `weights.in_flight` wait has it.

        Returns early on a stop, and when no server has the weights any more: what it was asked is then sampled anew.
        """
        settling = self.start(settled(self.pipeline, self.fleet))
        if self.wait(settling) != "done":
            self.loop.cancel(settling)

    def policy_pushed(self, version: int) -> None:
        """Sample everything with this version from now on."""
        self.loop.run(self.pipeline.policy_updated(version))

    def start(self, coroutine: Coroutine[Any, Any, ResultT]) -> "asyncio.Task[ResultT]":
        """Start `coroutine` in the event loop; `wait` waits for its task."""

        async def create() -> "asyncio.Task[ResultT]":
            task = asyncio.create_task(coroutine)
            # Read the exception: asyncio would log a stack trace for an error that nothing reads.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            return task

        return self.loop.run(create())

    def wait(self, task: "asyncio.Task[Any]") -> Literal["done", "push", "lost", "stop"]:
        """Wait for `task`. Returns early when the servers need another push, are lost to another trainer, or on a stop.

        The task has its own deadlines. While the event loop answers, the status gets a heartbeat, and whether a batch
        waits for samples or only for scores.
        """

        async def look() -> Literal["done", "push", "lost", "waiting"]:
            losing = asyncio.create_task(self.fleet.needs_push.wait())
            try:
                await asyncio.wait({task, losing}, return_when=asyncio.FIRST_COMPLETED, timeout=BEAT_INTERVAL_S)
            finally:
                losing.cancel()
            if task.done():
                return "done"
            if self.pusher.lease.taken_over is not None:
                return "lost"
            return "push" if self.fleet.needs_push.is_set() else "waiting"

        try:
            with self.stop.interruptible():
                while (verdict := self.loop.run(look())) == "waiting":
                    if self.stop.requested:  # by another rank, whose signal interrupts nothing here
                        raise StopRequested
                    self.status.beat()
                    self.status.lacks("score" if self.pipeline.lacks_only_scores else "wait")
            if verdict == "lost":
                self.loop.cancel(task)
            return verdict
        except StopRequested:
            self.loop.cancel(task)
            return "stop"

    def batch_used(self) -> None:
        """Mark the last batch as trained on. In the event loop's thread, which chooses prompts by what it teaches."""

        async def mark() -> None:
            self.pipeline.batch_used()

        self.loop.run(mark())

    def cursor(self) -> Cursor:
        """Return the run's position in its prompts. Read in the event loop's thread, which changes it."""

        async def read() -> Cursor:
            return self.pipeline.cursor()

        return self.loop.run(read())

    def abandon(self) -> int:
        """End the sampling by a policy that is given up, and its weight session.

        Drops the groups in flight and those that are ready. Returns the position of the first prompt not yet drawn.
        """
        self.loop.run(self.pipeline.stop(), timeout_s=30.0)
        self.pusher.leave()
        return self.cursor().next_position

    def start_over(self, cursor: Cursor) -> None:
        """Go on from `cursor` after `abandon`. Nothing is sampled until a push has opened a new weight session."""
        prompts = self.pipeline.prompts
        if prompts.difficulty is not None:
            prompts.difficulty.restore(cursor.difficulty)
        self.pipeline = self._new_pipeline(prompts, cursor)
        self.sampler.lost_requests = 0

    def probes(self, version: int) -> Coroutine[Any, Any, list[Probe]]:
        """Sample the canary's prompts on every server, with policy `version`."""
        return sample_probes(
            self.fleet,
            canary_prompts(
                self.probe_rows,
                self.config.canary,
                shortest=max(self._prepared.rows.shortest_prompt, 1),
                longest=self._prepared.rows.longest_prompt + self.config.rollout.max_completion_length,
                seen=self._prepared.rows.first_with_images,
                images=self._prepared.images,
            ),
            self.config.canary,
            session=self.fleet.session,
            version=version,
            temperature=self.config.rollout.temperature,
            image_token_id=self._prepared.images.token_id,
        )


async def settled(pipeline: Pipeline, fleet: Fleet) -> None:
    """Wait until nothing is sampled, or no server is left that samples."""
    waiting = [asyncio.create_task(pipeline.settle()), asyncio.create_task(fleet.until(lambda: not fleet.members))]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


def _refills(config: RunConfig) -> Refills:
    if not config.algorithm.dynamic_sampling:
        return Refills()
    test = teaches_by_turn if estimator_of(config.algorithm).by_turn else teaches
    return Refills(test, config.algorithm.max_refills * config.rollout.groups_per_batch)


async def _health(client: ServiceClient) -> Health:
    try:
        return await client.livez()
    except ServiceError as error:
        return Health(ok=False, detail=str(error))


def _waiting_for_rollout(urls: Sequence[str]) -> str:
    if len(urls) == 1:
        return f"waiting for the rollout server at {urls[0]}"
    return f"waiting for {len(urls)} rollout servers: {', '.join(urls)}"
