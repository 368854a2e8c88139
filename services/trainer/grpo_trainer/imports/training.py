"""What TRL and ms-swift have alike: settings by the tables, steps, DeepSpeed, and what does not go together here."""

import json
from pathlib import Path
from typing import Any

from ..config.peer_options import OFF_WITHOUT_VALUE
from ..config.rollout import UNDISTORTED
from ..errors import UsageError
from .batch import Batch, generation_batch
from .options import Options
from .run_file import RunFile, flow
from .values import FOLLOWING_A_METRIC, read

NEVER_CUT = (
    "a prompt longer than data.max_prompt_length is not cut: it stops the run before its first step, or with "
    "data.overlong_prompts drop its row is left out"
)
_OF_ADAPTIVE_ENTROPY = ("entropy_target", "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta")
_SAME_AS_ABSENT = {"algorithm.scale_rewards": "group"}
"""Setting → the value that its absence stands for with our default estimator."""


def set_option(options: Options, run: RunFile, option: str, setting: str, default: Any) -> None:
    """Set `setting` to the value of an option; where it is not given, to the peer's default, if ours is another."""
    values, comment = options.values(option), f"{options.peer.name}'s default of {option}"
    if values is None:
        found = read(setting, default, comment)
        comment += f": {found.reason}" if found.reason else ""
        if setting not in _SAME_AS_ABSENT or found.value != _SAME_AS_ABSENT[setting]:
            run.set_default(setting, found.value, comment)
    else:
        found = read(setting, values, options.shown(option))
        run.set(setting, found.value, options.shown(option))
        if found.reason:
            run.differs.append(f"{options.shown(option)}: {found.reason}")


def set_settings(options: Options, run: RunFile, defaults: dict[str, Any]) -> None:
    """Write every option that is one setting. `defaults` are those that follow from other options."""
    # The loss first: it decides on our defaults of other settings.
    for option in sorted(options.peer.settings, key=lambda name: name != "loss_type"):
        setting, default = options.peer.settings[option]
        set_option(options, run, option, setting, defaults.get(option, default))


def set_batch(options: Options, run: RunFile, processes: int) -> Batch:
    """Write the sizes of the generation batch and of an update."""
    per_device = options.whole("per_device_train_batch_size")
    batch = generation_batch(
        per_device=options.peer.default("per_device_train_batch_size") if per_device is None else per_device,
        processes=processes,
        accumulation=options.whole("gradient_accumulation_steps") or 1,
        generation_batch_size=options.whole("generation_batch_size"),
        steps_per_generation=options.whole("steps_per_generation"),
        num_generations=run.value("rollout.num_generations"),
    )
    run.set("rollout.generation_batch_size", batch.size, batch.formula)
    if batch.updates > 1 or options.has("generation_batch_size") or options.has("steps_per_generation"):
        run.set(
            "algorithm.steps_per_generation", batch.updates, f"updates of a generation batch: {batch.updates_formula}"
        )
    if batch.remark:
        run.differs.append(batch.remark)
    return batch


def set_micro_batch(options: Options, run: RunFile, prompt_length: int | None) -> None:
    """Bound a pass by the tokens that theirs can have, where the length of prompts is known. It is memory alone."""
    if prompt_length is None:
        return
    per_device = options.whole("per_device_train_batch_size") or options.peer.default("per_device_train_batch_size")
    longest = prompt_length + run.value("rollout.max_completion_length")
    together = run.value("deepspeed.sequence_parallel_size")
    formula = f"per_device_train_batch_size {per_device} x {longest}"
    run.set(
        "deepspeed.tokens_per_micro_batch",
        -(-per_device * longest // together),
        formula if together == 1 else f"{formula}, on {together} ranks together",
    )


def set_steps(options: Options, run: RunFile, batch: Batch, *, evaluates: bool, eval_steps: int) -> None:
    """Write what is counted in steps: theirs are optimizer updates, ours generation batches."""
    iterations = run.value("algorithm.num_iterations")
    each = batch.updates * iterations

    def counted(shown: str, updates: float) -> str:
        return shown if each == 1 else f"{shown}: {updates:g} updates, {each} in each generation batch"

    most = options.whole("max_steps")
    if most is not None and most > 0:
        run.set("max_steps", batch.batches_of(most, iterations), counted(options.shown("max_steps"), most))
    elif most is not None:
        run.not_needed.append(f"{options.shown('max_steps')}: num_train_epochs is the length of the run")
    _set_saving(options, run, batch, counted)
    given = options.number("eval_steps")
    if evaluates:
        steps = eval_steps if given is None else given
        shown = f"{options.peer.name}'s default of eval_steps" if given is None else options.shown("eval_steps")
        run.set("eval.eval_steps", _steps(batch, steps, iterations, run, shown), counted(shown, steps))
    elif given is not None:
        run.not_needed.append(f"{options.shown('eval_steps')}: no held-out rows are named, so nothing is evaluated")
    moves = options.whole("ref_model_sync_steps") or options.peer.default("ref_model_sync_steps")
    shown = options.shown("ref_model_sync_steps") if options.has("ref_model_sync_steps") else "ref_model_sync_steps"
    if run.value("algorithm.sync_ref_model"):
        run.set("algorithm.ref_model_sync_steps", batch.batches_of(moves, iterations), counted(shown, moves))
    elif options.has("ref_model_sync_steps"):
        run.not_needed.append(f"{shown}: sync_ref_model is off")


def _set_saving(options: Options, run: RunFile, batch: Batch, counted: Any) -> None:
    strategy = options.or_default("save_strategy")
    steps = options.number("save_steps")
    peer = options.peer.name
    shown = f"{peer}'s default of save_steps" if steps is None else options.shown("save_steps")
    if strategy == "no":
        run.set("checkpoint.save_steps", 0, f"{options.shown('save_strategy')}: at the end alone")
        return
    if strategy != "steps":
        ours = run.value("checkpoint.save_steps")
        run.differs.append(f"{options.shown('save_strategy')}: there is a checkpoint every {ours} steps")
        return
    steps = options.peer.default("save_steps") if steps is None else steps
    iterations = run.value("algorithm.num_iterations")
    comment = f"{shown}; {options.shown('save_strategy')}" if options.has("save_strategy") else shown
    run.set("checkpoint.save_steps", _steps(batch, steps, iterations, run, shown), counted(comment, steps))


def _steps(batch: Batch, steps: float, iterations: int, run: RunFile, shown: str) -> int:
    if steps >= 1:
        return batch.batches_of(steps, iterations)
    run.differs.append(f"{shown}: a share of all steps is no number of steps; ours stays")
    return int(run.value("checkpoint.save_steps"))


def set_schedule(options: Options, run: RunFile) -> None:
    """Write the warm-up and the parameters of the schedule, whose name is written already.

    transformers 5 reads `warmup_steps` as a share of all updates where it is below 1. Its `constant` has no warm-up.
    """
    given, name = options.values("lr_scheduler_kwargs"), options.text("lr_scheduler_type")
    if given is not None:
        shown = options.shown("lr_scheduler_kwargs")
        setting = "optimizer.lr_scheduler_kwargs"
        if run.value("optimizer.lr_scheduler_type") == "constant":
            run.not_needed.append(f"{shown}: the schedule constant has no parameters")
        else:
            run.set(setting, read(setting, given, shown).value, shown)
    steps = options.number("warmup_steps")
    if name in ("constant", *FOLLOWING_A_METRIC):
        run.entries.pop("optimizer.warmup_ratio", None)
        asked = [options.shown(option) for option in ("warmup_steps", "warmup_ratio") if options.number(option)]
        run.not_needed += [f"{shown}: the schedule {name} of transformers has no warm-up" for shown in asked]
        return
    if steps is None:
        return
    shown = options.shown("warmup_steps")
    if 0 < steps < 1:
        run.set("optimizer.warmup_ratio", steps, f"{shown}: a share of all updates")
    else:
        run.set("optimizer.warmup_steps", int(steps), shown)


def set_deepspeed(run: RunFile, given: str | None, shown: str, *, sharded: str | None) -> None:
    """Write the ZeRO stage of `--deepspeed`: a name, a file or JSON. `sharded` is an option that asks for FSDP."""
    if given is None:
        if sharded is not None:
            run.set("deepspeed.zero_stage", 3, f"in place of {sharded}: ranks share the weights, too")
        else:
            run.set("deepspeed.zero_stage", 0, "no DeepSpeed is asked for: ranks share nothing")
        return
    stage, offloads, remark = _zero(given)
    if stage is not None:
        run.set("deepspeed.zero_stage", stage, shown)
        if offloads:
            run.set("deepspeed.offload_optimizer", True, shown)
    if remark:
        run.differs.append(f"{shown}: {remark}")


def _zero(given: str) -> tuple[int | None, bool, str | None]:
    """ZeRO stage, whether the optimizer's state is in CPU memory, and what is otherwise."""
    name = given.removeprefix("default-")
    for stage in range(4):
        if name == f"zero{stage}":
            return stage, False, None
        if name == f"zero{stage}_offload":
            return (
                stage,
                True,
                "weights stay on the GPU; the optimizer's state is in CPU memory" if stage == 3 else None,
            )
    try:
        content = json.loads(given if given.lstrip().startswith("{") else Path(given).read_text(encoding="utf-8"))
        sharding = content.get("zero_optimization", {})
        offloads = sharding.get("offload_optimizer", {}).get("device", "none") != "none"
        return int(sharding.get("stage", 0)), offloads, "of the file, ZeRO's stage and offload_optimizer are taken over"
    except OSError:
        return None, False, f"there is no file {given}; deepspeed.zero_stage is ours"
    except (ValueError, AttributeError) as error:
        raise UsageError(f"--deepspeed {given} cannot be read: {error}") from error


def set_best(options: Options, run: RunFile, *, evaluates: bool) -> None:
    """Write by which metric a best checkpoint is kept."""
    metric = options.text("metric_for_best_model")
    keeps, greater = options.truth("load_best_model_at_end"), options.truth("greater_is_better")
    given = [options.shown(name) for name in _OF_BEST if options.has(name)]
    if not given and "checkpoint.patience" not in run.entries:
        return
    if not evaluates:
        run.differs += [f"{shown}: nothing is evaluated, so there is no best checkpoint" for shown in given]
        if run.entries.pop("checkpoint.patience", None) is not None:
            run.differs.append("no evaluation, so none that ends the run early")
        return
    if keeps is None and metric is None and "checkpoint.patience" not in run.entries:
        run.not_needed += [f"{shown}: no metric is named" for shown in given]
        return
    ours = {"eval_accuracy", "eval_greedy", "eval_reward"}
    plain = f"eval_{(metric or 'reward').removeprefix('eval_')}"
    if plain not in ours:
        run.differs.append(f"{options.shown('metric_for_best_model')}: an evaluation has {', '.join(sorted(ours))}")
        plain = "eval_reward"
    run.set("checkpoint.metric_for_best", plain, "; ".join(given) or "what ends the run early")
    if keeps:
        run.set("checkpoint.load_best_at_end", True, options.shown("load_best_model_at_end"))
    if greater is not None:
        run.set("checkpoint.greater_is_better", greater, options.shown("greater_is_better"))


_OF_BEST = ("metric_for_best_model", "load_best_model_at_end", "greater_is_better")


def set_loss_params(options: Options, run: RunFile, of_loss: dict[str, dict[str, str]]) -> None:
    """Write the parameters of a loss. `of_loss` is loss → option → parameter."""
    for loss, names in of_loss.items():
        read_here = run.value("algorithm.loss_type") == loss
        params = {}
        for option, parameter in names.items():
            params[parameter] = _loss_param(options, option)
            if options.has(option) and not read_here:
                run.not_needed.append(f"{options.shown(option)}: loss_type {loss} alone reads it")
        if read_here:
            run.set("algorithm.params", params, ", ".join(names))


def _loss_param(options: Options, option: str) -> Any:
    default = options.peer.default(option)
    if not options.has(option):
        return default
    if isinstance(default, bool):
        return options.truth(option)
    return None if option in OFF_WITHOUT_VALUE and options.text(option) == "null" else options.number(option)


def settle(run: RunFile) -> None:
    """Change what does not go together here, and report it."""
    if not run.value("algorithm.use_adaptive_entropy"):
        for name in _OF_ADAPTIVE_ENTROPY:
            entry = run.entries.pop(f"algorithm.{name}", None)
            if entry is not None and "default" not in entry.comment:
                run.not_needed.append(f"{entry.comment}: use_adaptive_entropy is off")
    if run.value("optimizer.name") == "adamw_8bit":
        run.starts.append("pip install 'grpo-trainer[bitsandbytes]'")
    elif run.value("optimizer.name") == "sgd":
        for name in ("adam_beta1", "adam_beta2", "adam_epsilon"):
            entry = run.entries.pop(f"optimizer.{name}", None)
            if entry is not None and "default" not in entry.comment:
                run.not_needed.append(f"{entry.comment}: sgd does not read it")
    adapted = any(name.startswith("model.lora.") for name in run.entries)
    if run.value("algorithm.sync_ref_model") and (adapted or not run.value("algorithm.beta")):
        why = "with an adapter the reference is the model below it" if adapted else "beta 0 has no reference"
        _change(run, "algorithm.sync_ref_model", False, why)
    if run.value("algorithm.kl_in_reward") and not run.value("algorithm.beta"):
        _change(run, "algorithm.kl_in_reward", False, "there is no KL with beta 0")
    if run.value("algorithm.kl_in_reward") and run.value("algorithm.advantage_estimator") == "gdpo":
        _change(run, "algorithm.kl_in_reward", False, "gdpo takes each reward by itself")
    if any(name.startswith("teacher.") for name in run.entries):
        if run.value("rollout.temperature") != 1.0:
            _change(run, "rollout.temperature", 1.0, "a teacher's logprobs are of temperature 1")
        for name, value in UNDISTORTED.items():
            if run.value(f"rollout.{name}") != value:
                _change(run, f"rollout.{name}", value, "a teacher's logprobs are of all tokens")
    distorting = [name for name, value in UNDISTORTED.items() if run.value(f"rollout.{name}") != value]
    if distorting:
        why = f"with {' and '.join(distorting)} the servers' logprobs are of another distribution than the policy's"
        if run.value("algorithm.importance_sampling_correction"):
            _change(run, "algorithm.importance_sampling_correction", False, why)
        if run.value("algorithm.max_staleness"):
            _change(run, "algorithm.max_staleness", 0, why)
        if run.value("algorithm.off_policy_mask_threshold") is not None:
            _change(run, "algorithm.off_policy_mask_threshold", None, why)
    run.set("guards.clipped", "warn", "cut-off completions alone end no run there")
    if run.value("model.load_in_4bit") and run.value("deepspeed.zero_stage") == 3:
        _change(run, "deepspeed.zero_stage", 2, "weights in four bits are whole on every rank")


def settle_groups(run: RunFile, ranks: int) -> None:
    """Have each rank compute by itself where the command's `ranks` do not make whole groups."""
    size = run.value("deepspeed.sequence_parallel_size")
    if ranks % size:
        said = "1 process does" if ranks == 1 else f"{ranks} processes do"
        _change(run, "deepspeed.sequence_parallel_size", 1, f"{said} not make whole groups of {size}")


def _change(run: RunFile, setting: str, value: Any, why: str) -> None:
    before = run.value(setting)
    origin = run.entries[setting].comment if setting in run.entries else "the default"
    run.differs.append(f"{setting} is {flow(value)}, not {flow(before)} ({origin}): {why}")
    run.set(setting, value, why)
