"""GRPO on one page: prompt → rollout → reward → (KL in the reward) → advantage → loss → push.

This is rank 0's script. It speaks to the servers through the orchestrator, commands all ranks through the crew
(`rank_work.py` is what each does), and writes things down in the journal. After step k the servers have policy version
k + 1.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain, product
from typing import Any, TypeVar

from grpo_proto import ServiceError

from .algorithm.agreement import Rule
from .algorithm.decisions import training_sequences
from .algorithm.demonstrations import Demonstrations, mu_of
from .algorithm.kl_in_reward import penalize, sequences_to_compare
from .algorithm.named_arrays import to_arrays
from .algorithm.planning import count_updates, token_counts
from .algorithm.sequences import Group, TrainingSequence, untrained_sequence
from .algorithm.skipping import SURVEY_EVERY, sequences_to_compute, surveyed
from .algorithm.teacher_view import sequences_to_teach, take_logprobs
from .callbacks import Callbacks
from .checkpoint.best import BestCheckpoint
from .checkpoint.rollbacks import seen_rollbacks
from .checkpoint.saving import CheckpointSaver
from .config.run_config import RunConfig
from .data.teacher_prompts import TeacherPrompts
from .errors import GuardStop, RunError, ServersError, UpdateError
from .fleet.canary import compare, compared_urls
from .fleet.push import TensorSource, push
from .guarding import WayBack, obey_guards, to_go_back_to
from .journal import Journal
from .orchestrator import Orchestrator
from .parts import Parts
from .ranks.crew import Crew
from .ranks.stop_signal import StopRequested

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

ONE_TRAINER = "the servers of a run are its own: end the other trainer, or give each its servers"


@dataclass(frozen=True)
class Run:
    """What a run is made of, on rank 0."""

    config: RunConfig
    crew: Crew
    saver: CheckpointSaver
    export: TensorSource
    orchestrator: Orchestrator
    journal: Journal
    max_steps: int
    canary_rule: Rule
    parts: Parts
    demonstrations: Demonstrations | None
    teaches_itself: Mapping[str, TeacherPrompts]
    """The datasets of which the policy is its own teacher, and what it reads then."""
    updates_done: Callable[[], int]
    """How many optimizer updates the engine has made, those before a resume too."""
    best: BestCheckpoint
    callbacks: Callbacks
    kept: Mapping[str, Any]
    """What a checkpoint keeps for `check_continuity`."""


def train(run: Run, *, step: int) -> int | WayBack:
    """Train on from `step` finished steps, to the end, until no better evaluation comes, or until asked to stop: by a
    signal or by a callback.

    Returns the last finished step; or the way back when a rule of the run file has ordered a rollback, which ends this
    call in the middle of a step.

    Raises ServersError when the servers do not do their part, UpdateError when no update can be made of a batch,
    GuardStop when a rule of the run file ends the run, CallbackError when a callback fails, and DiskError when a log
    cannot be written; every step until then is saved.
    """
    config = run.config
    adapter_is_zero = step == 0 and has_new_adapter(run)
    push_policy(run, version=step + 1)
    check_canary(run, version=step + 1)
    if step == 0:
        evaluate(run, step)
        run.journal.finish_step(step)
    elif is_evaluated(run, step):
        evaluate_late(run, step)

    finished = saved = step
    failure: RunError | None = None
    try:
        while step < run.max_steps and not ends_early(run):
            sequences = sample_and_score(run, version=step + 1)
            if sequences is None:
                break
            complete_save(run, wait=False)  # sampling took its time: what fails from here on loses no checkpoint
            step += 1
            changed = optimize(run, sequences, version=step)
            # A rule that goes back has to find the newest checkpoint complete.
            complete_save(run, wait=bool(config.guards.rollback_rules))
            if (way_back := obey_guards(config, run.journal, step)) is not None:
                return way_back
            wait_for_sequences_in_flight(run)
            push_policy(run, version=step + 1)
            if due(config.canary.steps, step) or (adapter_is_zero and changed):
                check_canary(run, version=step + 1)
            adapter_is_zero = adapter_is_zero and not changed
            if is_evaluated(run, step):
                evaluate(run, step)
            finish_step(run, step)
            finished = step
            if due(config.checkpoint.save_steps, step) or step == run.best.step:
                save(run, step)
                saved = step
    except StopRequested:  # asked for during a push that nobody answered
        pass
    except (ServersError, UpdateError, GuardStop) as error:
        failure = error
        if isinstance(error, UpdateError) and not run.journal.has_updates:
            step = finished  # its batch is sampled again
        log.error("%s; what is trained is saved before the run ends", error)
    except RunError:
        with suppress(RunError):  # the checkpoint of an earlier step is good
            complete_save(run)
        raise

    if failure is None and run.callbacks.stop is not None:  # the last step, which a callback has chosen after it
        try:
            evaluate_late(run, step)
        except ServersError as error:
            failure = error
    # A step whose policy no server took is done all the same.
    if step > finished:
        finish_step(run, step)
    if step > saved:
        save(run, step, stops=isinstance(failure, GuardStop))
    complete_save(run)
    if run.callbacks.stop is not None:
        run.journal.decided(step, [run.callbacks.stop])
    failure = failure or run.callbacks.failure or run.journal.failure
    if failure is not None:
        raise failure
    return step


def ends_early(run: Run) -> bool:
    """Whether the run ends before `max_steps`: no evaluation gets better, or a callback or a failing log ends it."""
    is_exhausted = run.best.is_exhausted(run.config.checkpoint.patience)
    return is_exhausted or run.callbacks.end_the_run or run.journal.failure is not None


def finish_step(run: Run, step: int) -> None:
    run.callbacks.on_step(step, run.journal.finish_step(step))


def sample_and_score(run: Run, *, version: int) -> list[TrainingSequence] | None:
    """Prompt → rollout → reward → advantage. Returns what is trained on; None when the run was asked to stop."""
    config, orchestrator = run.config, run.orchestrator
    with run.journal.stage("wait"):
        batch = wait_for(run, orchestrator.pipeline.next_batch(), version=version)
    if batch is None:
        return None
    if config.algorithm.kl_in_reward:
        penalize_kl(run, batch.groups, version=version)
    if run.teaches_itself:
        teach_itself(run, batch.groups, version=version)
    sequences, reward_metrics = training_sequences(
        batch.groups,
        config.algorithm,
        reward_weights=config.reward_weights,
        own_rewards=config.own_rewards,
        max_completion_length=config.rollout.max_completion_length,
        teachers=config.teachers,
    )
    counts, lost = orchestrator.pipeline.counts, orchestrator.sampler.lost_requests
    run.journal.batch_arrived(batch, reward_metrics, counts, lost_requests=lost, version=version)
    if not sequences:
        check_only_masked(batch.groups, config, step=version)
    return sequences


def check_only_masked(groups: list[Group], config: RunConfig, *, step: int) -> None:
    """Warn of a batch of which nothing is trained on because `mask_truncated_completions` masks most of it: its step
    makes no update. Raises ServersError for one that is mostly lost to other reasons."""
    masks = config.algorithm.mask_truncated_completions
    reasons = Counter(str(one.left_out_because(mask_truncated=masks)) for group in groups for one in group.episodes)
    told = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    if reasons.most_common(1)[0][0] != "truncated":
        raise ServersError(f"no sample of the batch can be trained on: {told}")
    log.warning(
        "step %d makes no update: no sample can be trained on (%s); raise rollout.max_completion_length %d, which cuts "
        "them off, or set algorithm.mask_truncated_completions false",
        step, told, config.rollout.max_completion_length,
    )  # fmt: skip


def penalize_kl(run: Run, groups: list[Group], *, version: int) -> None:
    """KL in the reward, which has to be known before the advantages: the policy's logprobs and the reference's."""
    episodes, sequences = sequences_to_compare(groups)
    with run.journal.stage("prepare"):
        parts, _ = run.parts.hand_out(sequences, of=sequences, version=version)
        sums = run.parts.log_ratios()
    compared = [sequence for part in parts for sequence in part]
    run.journal.add(penalize(episodes, compared, sums, beta=run.config.algorithm.beta))


def teach_itself(run: Run, groups: list[Group], *, version: int) -> None:
    """Self-distillation: the policy scores what it has sampled, and reads what only a teacher may."""
    with run.journal.stage("prepare"):
        own = [
            (group, run.teaches_itself[dataset])
            for group in groups
            if (dataset := group.row.dataset) in run.teaches_itself
        ]
        taught = [
            (one, ids) for group, prompts in own for ids in prompts.token_ids([group.row]) for one in group.episodes
        ]
        sequences = sequences_to_teach(taught, version=version)
        parts, num_tokens = run.parts.hand_out(sequences, of=sequences, version=version)
        run.journal.add({"teacher/tokens_computed": sum(num_tokens)})
        scored = zip(chain.from_iterable(parts), run.parts.logprobs(), strict=True)
        take_logprobs([episode for episode, _ in taught], {one.episode: logprobs for one, logprobs in scored})


def wait_for(run: Run, ask: Coroutine[Any, Any, ResultT], *, version: int) -> ResultT | None:
    """What the servers give; None when the run was asked to stop.

    Pushes the weights again when all servers have lost them meanwhile. Raises ServersError when the servers do not do
    their part.
    """
    task = run.orchestrator.start(ask)
    while True:
        match run.orchestrator.wait(task):
            case "lost":
                raise ServersError(str(run.orchestrator.pusher.lease.taken_over), hint=ONE_TRAINER)
            case "push":
                with suppress(StopRequested):  # the next wait ends by the stop, too, and gives the task up
                    push_policy(run, version=version)
            case "stop":
                return None
            case "done":
                raise_failure_of(task)
                return task.result()


def raise_failure_of(task: "asyncio.Task[Any]") -> None:
    """Raise as ServersError what the servers did not do; a mistake of our own is no such failure."""
    match error := task.exception():
        case RunError():
            raise ServersError(**error.told()) from error
        case ServiceError():
            raise ServersError(str(error)) from error


def optimize(run: Run, sequences: list[TrainingSequence], *, version: int) -> bool:
    """Loss: `num_iterations` passes over the batch, each rank with its own part of the sequences.

    Returns whether the policy changed: not at a learning rate of 0, as a warm-up begins, nor without a gradient.
    """
    algorithm, num_updates = run.config.algorithm, count_updates(sequences)
    computed = sequences_to_compute(sequences, algorithm)
    run.journal.add({"samples/computed": len({sequence.episode for sequence in computed})})
    with run.journal.stage("prepare"):
        if len(computed) < len(sequences) and (due(SURVEY_EVERY, version) or not computed):
            run.parts.hand_out(sequences, of=sequences, version=version)
            run.journal.add(surveyed(run.crew.do("survey")))
        _, num_tokens = run.parts.hand_out(computed, of=sequences, version=version)
        run.journal.add(token_counts(computed, sum(num_tokens), shares=run.parts.prefixes is not None))
        run.crew.do("prepare")
    results: list[dict[str, float]] = []
    with run.journal.stage("train"):
        try:
            for _, number in product(range(algorithm.num_iterations), range(num_updates)):
                imitate(run, version=version)
                results.append(run.crew.do("update", number))
        finally:
            if results or not sequences:
                run.orchestrator.batch_used()
                run.journal.updated(results)
        if algorithm.sync_ref_model and due(algorithm.ref_model_sync_steps, version):
            run.crew.do("sync_reference")
            log.info("step %d: the reference model moved towards the policy", version)
    made = [result for result in results if not result["update_skipped"]]  # a skipped one has no `grad_norm`
    return any(result["learning_rate"] > 0 and result["grad_norm"] > 0 for result in made)


def imitate(run: Run, *, version: int) -> None:
    """Give each rank its part of the demonstrations of the next optimizer update."""
    if run.demonstrations is None:
        return
    chord, number = run.demonstrations.config, run.updates_done()
    if (mu := mu_of(chord, number)) > 0.0:
        taken = run.demonstrations.of_update(number, version=version)
        run.parts.hand_out(taken, mu, chord.enable_phi_function, command="imitate", of=taken, version=version)


def wait_for_sequences_in_flight(run: Run) -> None:
    """Wait until nothing is sampled, where the run file says so. With adapters none changes its policy anyway."""
    if run.config.weights.in_flight == "wait" and run.export.kind == "full":
        with run.journal.stage("wait"):
            run.orchestrator.settle()


def push_policy(run: Run, *, version: int) -> None:
    """Push: the servers sample by `version` from here on."""
    with run.journal.stage("push"):
        result = push(version, run.export, run.orchestrator.pusher, run.config.weights)
        run.orchestrator.policy_pushed(version)
        run.journal.pushed(result)


def check_canary(run: Run, *, version: int) -> None:
    """Raises RunError when a server computes something else than the trainer with the same weights.

    That is no ServersError: a policy that was trained on its samples is not saved.
    """
    with run.journal.stage("eval"):
        probes = wait_for(run, run.orchestrator.probes(version), version=version) or []
        arrays = to_arrays([untrained_sequence(probe.segment, episode=n) for n, probe in enumerate(probes)])
        own = run.crew.do("logprobs", version, each=[arrays] * run.crew.ranks.world_size)
        run.journal.add(compare(probes, own, rule=run.canary_rule, version=version))
        run.orchestrator.pusher.canary_agreed(version, compared_urls(probes))


def has_new_adapter(run: Run) -> bool:
    """Whether the first push is an adapter that adds nothing, so that the first canary proves nothing of it."""
    lora = run.config.model.lora
    return run.export.kind == "lora" and lora is not None and lora.adapter is None


def evaluate(run: Run, step: int) -> None:
    """Held-out accuracy; the other ranks wait for the next command."""
    if evaluates(run):
        with run.journal.stage("eval"):
            evaluated = wait_for(run, run.orchestrator.evaluation.run(version=step + 1, step=step), version=step + 1)
        if evaluated is not None:
            run.journal.evaluated(step, evaluated.metrics, evaluated.groups)
            run.best.judge(step, evaluated.metrics)
            run.callbacks.on_evaluation(step, evaluated.metrics)
        else:
            log.info("asked to stop: step %d is not evaluated; --resume does that", step)


def evaluates(run: Run) -> bool:
    return run.config.eval.eval_steps > 0 and run.config.has_held_out_rows


def is_evaluated(run: Run, step: int) -> bool:
    return due(run.config.eval.eval_steps, step) or step == run.max_steps


def evaluate_late(run: Run, step: int) -> None:
    """Evaluate a step that is written already: the process that made it ended before, or it became the last one."""
    if evaluates(run) and step > 0 and run.journal.totals.evaluated_step != step:
        evaluate(run, step)
        run.journal.complete_step(step)


def save(run: Run, step: int, *, stops: bool = False) -> None:
    """`stops`: a rule of the run file ends the run after this step."""
    with run.journal.stage("save"):
        state = {
            "step": step,
            "cursor": asdict(run.orchestrator.cursor()),
            "totals": run.journal.state(),
            "reward_code": dict(run.orchestrator.reward.code.hashes),
            "best": asdict(run.best),
            **run.kept,
            **seen_rollbacks(run.config.run_dir),
        }
        best = set() if run.best.step is None else {run.best.step}
        run.saver.save(step, state, spared=best | to_go_back_to(run.config, step, stops=stops))


def complete_save(run: Run, *, wait: bool = True) -> None:
    """Complete the checkpoint that is being written beside training; without `wait` if it is written."""
    if run.saver.is_writing:
        with run.journal.stage("save"):
            run.saver.complete(wait=wait)


def due(every: int, step: int) -> bool:
    return every > 0 and step % every == 0
