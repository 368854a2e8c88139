"""Config → parts → loop, on every rank."""

import gc
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch

from grpo_proto import ServiceError
from grpo_proto.messages.weights import Kind

from .algorithm.demonstrations import Demonstrations
from .algorithm.estimators import estimator_of
from .algorithm.trial import check_algorithm
from .callbacks import Callbacks, load_callbacks
from .checkpoint.best import BestCheckpoint, load_best
from .checkpoint.continuity import Facts, check_continuity, kept_of, kept_of_model, kept_of_rows
from .checkpoint.rollbacks import remove_abandoned, with_prompts_moved_on
from .checkpoint.run_folder import find_start, make_run_folder, trainer_id
from .checkpoint.run_lock import only_trainer_in
from .checkpoint.saving import CheckpointSaver, FinalFolder, final_folders
from .checkpoint.space import check_space
from .config.changes import changed_settings
from .config.model import ModelConfig
from .config.run_config import RunConfig
from .config.settings import write_resolved
from .crew_export import CrewExport
from .data.difficulty import DifficultyMemory
from .data.order import PromptOrder
from .engine.schedule import number_of_updates
from .engine.state import layout, read_engine_state
from .engine.training_engine import TrainingEngine
from .errors import CallbackError, DiskError, GuardStop, RunError, is_full
from .fleet.canary import rule_for
from .guarding import WayBack
from .journal import Journal
from .live_sources import show_servers
from .loop import Run, ends_early, train
from .lora.files import base_digest_of
from .observe.jsonl import evaluation_of
from .observe.live_warnings import recent_warnings
from .observe.run_status import RunStatus
from .observe.summary import RunTotals, write_report_and_summary
from .orchestrator import Orchestrator
from .parts import Parts
from .prepared import Prepared
from .rank_work import COMMANDS, RankWork
from .ranks.crew import Crew, follow
from .ranks.launch import environment_rank, environment_world_size
from .ranks.one_run import taken_over, told_of
from .ranks.process_group import join_process_group, own_device, tell_of_ranks
from .ranks.ranks import is_of_a_lost_rank, join_ranks, of_a_lost_rank
from .ranks.rendezvous import Rendezvous
from .ranks.silent_ranks import SilentRanks
from .ranks.stop_signal import StopRequested, StopSignal
from .rollback import go_back
from .sampling.pipeline import Cursor
from .sampling.reward_code import RewardCode
from .sharing import try_sharing

log = logging.getLogger(__name__)

SLACK_S = 60.0
"""Added to the limit of a phase that ends by a limit of its own: a file server takes its time to say that a lock is
held, and a group of ranks to raise."""
SILENCE_S = 24 * 3600.0
"""How long ranks wait for rank 0, which may wait for a server; its own deadlines are shorter."""


def run(config: RunConfig, *, resume: bool, status: RunStatus, stop: StopSignal) -> int:
    """Train as `config` says. Returns the exit status, rank 0's on every rank.

    Raises TrainerError when the run cannot start or go on.
    """
    try:
        with ExitStack() as open_parts:
            return _run(config, resume=resume, status=status, stop=stop, open_parts=open_parts)
    except ServiceError as error:
        raise RunError(str(error)) from error
    except OSError as error:
        if is_full(error):
            raise DiskError.of(error, run_dir=config.run_dir) from error
        raise
    except torch.OutOfMemoryError as error:
        raise RunError(
            f"the memory of the GPU is full: {str(error).splitlines()[0]}",
            hint="lower deepspeed.tokens_per_micro_batch, or see `out of memory` in docs/trainer.md",
        ) from error
    except RuntimeError as error:
        if environment_world_size() > 1 and is_of_a_lost_rank(error):
            raise of_a_lost_rank(error) from error
        raise
    except StopRequested:
        log.info("stopped before a step was made")
        return 0


def _run(config: RunConfig, *, resume: bool, status: RunStatus, stop: StopSignal, open_parts: ExitStack) -> int:
    first_rank = environment_rank() == 0
    check_algorithm(config)
    own_device()  # a GPU that is missing is told before anything is waited for
    warnings = open_parts.enter_context(recent_warnings())
    rendezvous = open_parts.enter_context(Rendezvous(connect_s=config.deepspeed.timeout_s))
    open_parts.enter_context(SilentRanks(status, stop, rendezvous.connect))
    folder, state, base_digest = None, None, None
    kept = kept_of(config) if first_rank else {}
    callbacks = Callbacks(load_callbacks(config.callbacks, config.callbacks_params) if first_rank else {})
    if first_rank:
        make_run_folder(config.run_dir)
        status.enter_phase("waiting for another trainer in this run_dir", limit_s=config.lock_timeout_s + SLACK_S)
        open_parts.enter_context(
            only_trainer_in(config.run_dir, timeout_s=config.lock_timeout_s, interruptible=stop.interruptible)
        )
        base_digest = digest_below_adapter(config, status=status, stop=stop)
        status.enter_phase("reading the data", limit_s=config.server.loading_s)
        folder, state = open_checkpoint(config, kept, resume=resume, stop=stop, base_digest=base_digest)
    step = state["step"] if state else 0
    if state:  # before the loads and the waits: who looks at the run meanwhile sees what it did
        status.know_run(max_steps=0, step=step)
        status.history.restore(config.run_dir, through_step=step)

    orchestrator, demonstrations, max_steps, pad_token_id = None, None, 0, 0
    push_kind: Kind = "full"
    if first_rank:
        prepared = Prepared.of(config, folder=config.run_dir / "data")
        rows, tokenizer = prepared.rows, prepared.tokenizer
        pad_token_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        of_rows = kept_of_rows(config, rows, prepared.eval_rows, prepared.demonstrations)
        if state and folder:
            check_continuity(state, of_rows, folder)
        kept |= of_rows
        config, max_steps = prepared.config, prepared.max_steps
        status.know_run(max_steps=max_steps, step=step)
        for change in changed_settings(config.run_dir / "run.yaml", config) if state else ():
            log.info("since the run was last started: %s", change)
        write_resolved(config, config.run_dir / "run.yaml")
        if step >= max_steps:
            length = "max_steps" if config.max_steps is not None else "num_train_epochs"
            log.info("step %d of %d is done: nothing is left to train; raise %s to train on", step, max_steps, length)
        for doubt in prepared.doubts():
            log.warning("%s", doubt)
        demonstrations = Demonstrations.of(config.chord, prepared.demonstrations, seed=config.seed)
        cursor = Cursor(**state["cursor"]) if state else Cursor()
        rests = not (config.untaught is not None or estimator_of(config.algorithm).learns_from_equal_rewards)
        memory = DifficultyMemory.of(config.data.difficulty, seed=config.seed, known=cursor.difficulty, rests=rests)
        prompts = PromptOrder(
            rows,
            seed=config.seed,
            shuffle=config.data.shuffle,
            difficulty=memory,
            shares=rows.shares(config.data),
        )
        orchestrator = open_parts.enter_context(
            Orchestrator(
                config,
                prepared=prepared,
                prompts=prompts,
                cursor=cursor,
                reward_code=RewardCode(
                    state.get("reward_code") if state else None, accept=config.reward.accept_changed_code
                ),
                trainer_id=trainer_id(config.run_dir),
                stop=stop,
                status=status,
                base_digest=base_digest,
            )
        )
        open_parts.enter_context(status.watching("the event loop", orchestrator.loop.is_alive))
        show_servers(status, config, orchestrator, warnings)
        push_kind = orchestrator.connect()

    # Ranks wait for each other in libraries, where no handler runs, and there is nothing to save yet.
    with stop.ending_at_once() if rendezvous.has_others else nullcontext():
        if first_rank:
            told = {"step": step, "max_steps": max_steps, "pad_token_id": pad_token_id}
            told |= {"push_kind": push_kind, "base_digest": base_digest, "one_run": told_of(config)}
            rendezvous.announce(told | {"folder": str(folder) if folder else None})
        else:  # which so need neither the data nor the tokenizer
            with status.waiting_for_rank():
                told = rendezvous.wait_for_start(silence_s=SILENCE_S)
            folder, step = Path(told["folder"]) if told["folder"] else None, told["step"]
            max_steps, pad_token_id = told["max_steps"], told["pad_token_id"]
            push_kind, base_digest = told["push_kind"], told["base_digest"]
            config = taken_over(config, told["one_run"])
            status.know_run(max_steps=max_steps, step=step)
        status.enter_phase("waiting for the other ranks", limit_s=config.deepspeed.timeout_s + SLACK_S)
        device = join_process_group(timeout_s=config.deepspeed.timeout_s)
    if first_rank:
        tell_of_ranks(config.deepspeed, device)
    status.enter_phase("loading the model", limit_s=config.server.loading_s)
    engine = TrainingEngine(
        config.model if folder is None else without_first_adapter(config.model),
        config.optimizer,
        config.deepspeed,
        config.algorithm,
        temperature=config.rollout.temperature,
        total_updates=number_of_updates(config, max_steps),
        seed=config.seed,
        push_kind=push_kind,
        base_digest=base_digest,
        beat=status.beat,
    )
    if folder is not None:
        status.enter_phase("loading the checkpoint", limit_s=config.server.loading_s)
        engine.load(folder / "engine")
    ranks = join_ranks(silence_s=SILENCE_S)
    if ranks.broadcast_json(stop.requested):  # while it loaded: a push would be for nothing
        raise StopRequested
    sharing = config.deepspeed
    work = RankWork(engine, ranks, pad_token_id=pad_token_id, tokens_per_micro_batch=sharing.tokens_per_micro_batch)
    gc.collect()  # garbage that is frozen would never be freed
    gc.freeze()  # nearly all of this stays: to look through it takes 0.3 s, and all other ranks wait meanwhile
    if orchestrator is None:
        stop.record_only()  # rank 0 learns of it, and commands what is still to do
        return follow(ranks, work, COMMANDS, status)

    crew = open_parts.enter_context(Crew(ranks, work, COMMANDS, status))
    kept |= kept_of_model(config)  # by now its files are here
    if engine.prefixes is not None:
        status.enter_phase("trying shared prefixes", limit_s=config.server.loading_s)
        try_sharing(crew, config, orchestrator.probe_rows, engine)
    final = final_folders(config, engine)
    for final_folder in final:
        final_folder.rehearse()
    if step < max_steps:
        final_bytes = sum(final_folder.num_bytes for final_folder in final)
        check_space(config.run_dir, config.checkpoint, engine.num_checkpoint_bytes, final_bytes=final_bytes)
    parts = (engine, crew, orchestrator, demonstrations, callbacks, kept, final)
    while True:
        way_back = _train(config, state, *parts, status=status, stop=stop, max_steps=max_steps)
        if way_back is None:
            return 0
        with ExitStack() as ending:
            ending.push(callbacks)  # without a way back the run has ended for them, too
            state = go_back(way_back, config, crew, orchestrator, status, max_steps=max_steps)
            ending.pop_all()


def _train(
    config: RunConfig,
    state: dict[str, Any] | None,
    engine: TrainingEngine,
    crew: Crew,
    orchestrator: Orchestrator,
    demonstrations: Demonstrations | None,
    callbacks: Callbacks,
    kept: Mapping[str, Facts],
    final: Sequence[FinalFolder],
    *,
    status: RunStatus,
    stop: StopSignal,
    max_steps: int,
) -> WayBack | None:
    """Train on from `state`, a checkpoint's, which is loaded; None begins a run. Writes model, report and summary.

    Returns the way back when a rule has ordered a rollback.
    """
    step = state["step"] if state else 0
    totals = RunTotals(**state["totals"]) if state else RunTotals()
    resumed_step = step if state else None
    late = evaluation_of(config.run_dir, step) if state and totals.evaluated_step != step else {}
    if late:  # made after the checkpoint was: by a process that had resumed at this step
        totals.evaluation_after, totals.evaluated_step = late, step
    with (
        Journal(config, status, stop, max_steps=max_steps, resumed_step=resumed_step, totals=totals) as journal,
        ExitStack() as ending,
    ):
        parts = Run(
            config,
            crew,
            CheckpointSaver(config, crew, num_bytes=engine.num_checkpoint_bytes),
            CrewExport(engine.export, crew),
            orchestrator,
            journal,
            max_steps=max_steps,
            canary_rule=rule_for(config, engine.device.type, has_experts=engine.has_experts),
            parts=Parts(crew, config.deepspeed, engine.prefixes),
            demonstrations=demonstrations,
            teaches_itself=orchestrator.teaches_itself,
            updates_done=lambda: engine.updates_done,
            best=BestCheckpoint.of(config.checkpoint, state.get("best") if state else None, run_dir=config.run_dir),
            callbacks=callbacks,
            kept=kept,
        )
        if late:
            parts.best.judge(step, late)
        callbacks.begin(step, stage=journal.stage)
        ending.push(callbacks)
        try:
            finished = train(parts, step=step)
        except (GuardStop, CallbackError):
            steps = status.snapshot().step
            write_report_and_summary(config, journal.final_totals(), steps=steps, facts=parts.best.facts())
            raise
        if isinstance(finished, WayBack):
            ending.pop_all()  # this is no end for the callbacks
            return finished
        is_done, model_step = finished >= max_steps or ends_early(parts), finished
        if not is_done:
            log.info("stopped after step %d of %d; go on with --resume", finished, max_steps)
        else:
            if finished < max_steps and parts.callbacks.stop is None:
                found = parts.best
                log.info("stopped early after step %d: the best %s is of step %s", finished, found.metric, found.step)
            with journal.stage("save"):
                if config.checkpoint.load_best_at_end:
                    model_step = load_best(config, parts.best, crew, step=finished)
                for folder in final:
                    folder.save(crew)
        facts = parts.best.facts() | ({"model_step": model_step} if is_done else {})
        write_report_and_summary(config, journal.final_totals(), steps=finished, facts=facts)
        if is_done:
            status.done()
    return None


def without_first_adapter(model: ModelConfig) -> ModelConfig:
    """The model of a run that goes on: its adapter is in the checkpoint, and that from before the run may be gone."""
    if model.lora is None:
        return model
    return model.model_copy(update={"lora": model.lora.model_copy(update={"adapter": None})})


def digest_below_adapter(config: RunConfig, *, status: RunStatus, stop: StopSignal) -> str | None:
    """Compute the digest of the model that an adapter is trained on; None when all weights are trained. Rank 0 only."""
    if config.model.lora is None:
        return None
    status.enter_phase("computing the digest of the model", limit_s=config.server.loading_s)
    with stop.interruptible():
        return base_digest_of(config.model.name_or_path)


def open_checkpoint(
    config: RunConfig, kept: Mapping[str, Facts], *, resume: bool, stop: StopSignal, base_digest: str | None = None
) -> tuple[Path, dict[str, Any]] | tuple[None, None]:
    """The checkpoint to go on from and its state, if there is one. `kept`: see `kept_of`. Rank 0 only.

    Raises UsageError when the checkpoint is of another layout, seed, mixture or model, before anything is waited for.
    """
    if resume:
        remove_abandoned(config.run_dir)
    found = find_start(config.run_dir, resume=resume, reading=stop.interruptible)
    if found is not None:
        own = layout(
            zero_stage=config.deepspeed.zero_stage,
            world_size=environment_world_size(),
            dtype=config.model.dtype,
            frozen=config.model.trained_layout,
            lora=config.model.lora,
            base_digest=base_digest,
            optimizer=config.optimizer.layout,
            sync_ref_model=config.algorithm.sync_ref_model,
        )
        read_engine_state(found[0] / "engine", own)
        check_continuity(found[1], kept, found[0])
        return found[0], with_prompts_moved_on(found[1], config.run_dir)
    return None, None
