"""GRPO on one page: prompt → rollout → reward → advantage → loss → push.

Every rank runs this loop. Rank 0 has an Orchestrator, which speaks to the servers, and a Journal, which writes things
down; the others learn by broadcast what they need. After step k the servers have policy version k + 1.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from grpo_proto import ServiceError

from .algorithm.batching import build_updates
from .algorithm.decisions import training_sequences
from .algorithm.sequences import MicroBatch, TrainingSequence, from_arrays, to_arrays, untrained_sequence
from .checkpoint.saving import save_checkpoint
from .config.run_config import RunConfig
from .engine.training_engine import TrainingEngine
from .errors import RunError, ServersError
from .journal import Journal
from .observe.metrics import merge_updates
from .ranks.ranks import Ranks
from .ranks.stop_signal import StopRequested
from .servers.canary import bound_for, compare, own_logprobs
from .servers.orchestrator import Orchestrator
from .servers.push import push

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

ONE_TRAINER = "the servers of a run are its own: end the other trainer, or give each its servers"


@dataclass(frozen=True)
class Rank0:
    """What only rank 0 has."""

    orchestrator: Orchestrator
    journal: Journal


@dataclass(frozen=True)
class Run:
    """What a run is made of, on this rank."""

    config: RunConfig
    engine: TrainingEngine
    ranks: Ranks
    max_steps: int
    pad_token_id: int
    rank0: Rank0 | None


def train(run: Run, *, step: int) -> int:
    """Train on from `step` finished steps, to the end or until asked to stop. Returns the last finished step.

    Raises ServersError when the servers do not do their part; every step until then is saved.
    """
    config = run.config
    push_policy(run, version=step + 1)
    check_canary(run, version=step + 1)
    if step == 0:
        evaluate(run, step)
        finish_step(run, step)
    elif step == run.max_steps:
        evaluate_late(run, step)

    finished = saved = step
    failure: ServersError | None = None
    try:
        while step < run.max_steps:
            sequences = sample_and_score(run, version=step + 1)
            if sequences is None:
                break
            step += 1
            optimize(run, build_updates_of(run, sequences, version=step))
            push_policy(run, version=step + 1)
            if due(config.canary.steps, step):
                check_canary(run, version=step + 1)
            if due(config.eval.eval_steps, step) or step == run.max_steps:
                evaluate(run, step)
            finish_step(run, step)
            finished = step
            if due(config.checkpoint.save_steps, step):
                save(run, step)
                saved = step
    except StopRequested:  # asked for during a push that nobody answered
        pass
    except ServersError as error:
        failure = error
        if run.rank0:
            log.error("%s; what is trained is saved before the run ends", error)

    # A step whose policy no server took is done all the same.
    if step > finished:
        finish_step(run, step)
    if step > saved:
        save(run, step)
    if failure is not None:
        raise failure
    return step


def sample_and_score(run: Run, *, version: int) -> list[TrainingSequence] | None:
    """Prompt → rollout → reward → advantage, on rank 0. Returns the sequences on every rank; None: asked to stop."""
    with stage(run, "wait"):
        batch = wait_for(run, Orchestrator.next_batch, version=version)
    arrays = None
    if run.rank0 and batch is not None:
        sequences, reward_metrics = training_sequences(
            batch.groups, run.config.algorithm, max_completion_length=run.config.rollout.max_completion_length
        )
        counts, lost = run.rank0.orchestrator.pipeline.counts, run.rank0.orchestrator.rollout.lost_requests
        run.rank0.journal.batch_arrived(batch, reward_metrics, counts, lost_requests=lost, version=version)
        arrays = to_arrays(sequences)
    arrays = run.ranks.broadcast_arrays(arrays)
    if arrays is None:
        return None
    if not len(arrays["lengths"]):
        raise ServersError("no sample of the batch can be trained on: none has both a score and a token")
    return from_arrays(arrays)


def wait_for(run: Run, ask: Callable[[Orchestrator], Coroutine[Any, Any, ResultT]], *, version: int) -> ResultT | None:
    """What rank 0 gets from the servers; None on the other ranks, and when the run was asked to stop.

    When all servers have lost their weights meanwhile, every rank takes part in pushing them again. Raises
    ServersError, on every rank, when they do not give it.
    """
    task, verdict, failure = None, None, None
    if run.rank0:
        task = run.rank0.orchestrator.start(ask(run.rank0.orchestrator))
    while True:
        if run.rank0 and task:
            verdict = run.rank0.orchestrator.wait(task)
            failure = failure_of(task) if verdict == "done" else None
            if verdict == "lost":
                failure = {"message": run.rank0.orchestrator.pusher.lease.taken_over, "hint": ONE_TRAINER}
        verdict, failure = run.ranks.broadcast_json([verdict, failure])
        if failure is not None:
            raise ServersError(**failure)
        if verdict == "push":
            with suppress(StopRequested):  # the next look hears it, too, and gives the task up
                push_policy(run, version=version)
        else:
            return task.result() if task and verdict == "done" else None


def failure_of(task: "asyncio.Task[Any]") -> dict[str, str | None] | None:
    """What the servers did not do, for the other ranks; a mistake of our own is no such failure."""
    match task.exception():
        case RunError() as error:
            return error.told()
        case ServiceError() as error:
            return {"message": str(error), "hint": None}
        case _:
            return None


def build_updates_of(run: Run, sequences: list[TrainingSequence], *, version: int) -> list[list[MicroBatch]]:
    """The micro-batches of this rank, by optimizer update."""
    return build_updates(
        sequences,
        version=version,
        tokens_per_micro_batch=run.config.deepspeed.tokens_per_micro_batch,
        rank=run.ranks.rank,
        world_size=run.ranks.world_size,
        pad_token_id=run.pad_token_id,
        device=run.engine.device,
    )


def optimize(run: Run, updates: list[list[MicroBatch]]) -> None:
    """Loss: `num_iterations` passes over the batch."""
    with stage(run, "prepare"):
        run.engine.prepare(updates)
    with stage(run, "train"):
        passes = range(run.config.algorithm.num_iterations)
        results = [run.engine.update(update) for _ in passes for update in updates]
    if run.rank0:
        run.rank0.orchestrator.pipeline.batch_used()
        run.rank0.journal.add(merge_updates(results))


def push_policy(run: Run, *, version: int) -> None:
    """Push: the servers sample by `version` from here on."""
    with stage(run, "push"):
        pusher = run.rank0.orchestrator.pusher if run.rank0 else None
        result = push(version, run.engine.export, run.ranks, pusher, run.config.weights)
        if run.rank0:
            run.rank0.orchestrator.policy_pushed(result)
            run.rank0.journal.pushed(result)


def check_canary(run: Run, *, version: int) -> None:
    """Raises RunError, on every rank, when a server computes something else than the trainer with the same weights.

    That is no ServersError: a policy that was trained on its samples is not saved.
    """
    with stage(run, "eval"):
        probes = wait_for(run, Orchestrator.probes, version=version) or []
        sampled = [untrained_sequence(probe.segment, episode=number) for number, probe in enumerate(probes)]
        sequences = from_arrays(run.ranks.broadcast_arrays(to_arrays(sampled)) or {})
        budget = run.config.deepspeed.tokens_per_micro_batch
        own = own_logprobs(
            run.engine, sequences, version=version, tokens_per_micro_batch=budget, pad_token_id=run.pad_token_id
        )
        failure = None
        if run.rank0:
            try:
                bound = bound_for(run.config, run.engine.device.type)
                run.rank0.journal.add(compare(probes, own, bound=bound, version=version))
            except RunError as error:
                failure = error.told()
        if (failure := run.ranks.broadcast_json(failure)) is not None:
            raise RunError(**failure)


def evaluate(run: Run, step: int) -> None:
    """Held-out accuracy; the other ranks wait for rank 0."""
    if run.config.eval.eval_steps and run.config.data.eval_dataset:
        with stage(run, "eval"):
            metrics = wait_for(run, lambda orchestrator: orchestrator.evaluation_of(step), version=step + 1)
        if metrics is not None and run.rank0:
            run.rank0.journal.evaluated(step, metrics)
        elif run.rank0:
            log.info("asked to stop: step %d is not evaluated; if it is the last, --resume does that", step)


def evaluate_late(run: Run, step: int) -> None:
    """The last step was made by a process that ended before its evaluation: the push may have found no server."""
    missing = run.rank0.journal.totals.evaluated_step != step if run.rank0 else None
    if run.ranks.broadcast_json(missing):
        evaluate(run, step)
        if run.rank0:
            run.rank0.journal.complete_step(step)


def finish_step(run: Run, step: int) -> None:
    if run.rank0:
        run.rank0.journal.finish_step(step)


def save(run: Run, step: int) -> None:
    with stage(run, "save"):
        state = None
        if run.rank0:
            orchestrator = run.rank0.orchestrator
            state = {
                "step": step,
                "cursor": asdict(orchestrator.cursor()),
                "totals": run.rank0.journal.state(),
                "reward_code": orchestrator.reward.code.hashes,
            }
        save_checkpoint(step, run.config, run.engine, run.ranks, state)


def due(every: int, step: int) -> bool:
    return every > 0 and step % every == 0


def stage(run: Run, name: str) -> AbstractContextManager[None]:
    return run.rank0.journal.stage(name) if run.rank0 else nullcontext()
