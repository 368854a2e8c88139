"""Settings that another setting leaves without any effect: a run that names one means something else than it does."""

from collections.abc import Callable, Sequence
from operator import attrgetter

from .algorithm import LOSS_TYPES
from .run_config import RunConfig

CLIPS = {
    "epsilon": ("clipped", "decoupled", "fipo", "gmpo", "dppo_tv", "dppo_kl"),
    "epsilon_high": ("clipped", "decoupled", "cispo", "fipo", "gmpo", "dppo_tv", "dppo_kl"),
    "delta": ("clipped", "decoupled", "fipo"),
}
"""Clip → the surrogates that read it."""

SWITCHES: Sequence[tuple[tuple[str, ...], Callable[[RunConfig], bool], str]] = (
    (
        ("algorithm.ref_model_mixup_alpha", "algorithm.ref_model_sync_steps"),
        lambda run: run.algorithm.sync_ref_model,
        "algorithm.sync_ref_model is off",
    ),
    (("algorithm.max_refills",), lambda run: run.algorithm.dynamic_sampling, "algorithm.dynamic_sampling is off"),
    (
        ("algorithm.importance_sampling_mode", "algorithm.importance_sampling_clip_max"),
        lambda run: run.algorithm.importance_sampling_correction,
        "algorithm.importance_sampling_correction is off",
    ),
    (
        ("optimizer.adam_beta1", "optimizer.adam_beta2", "optimizer.adam_epsilon"),
        lambda run: run.optimizer.name != "sgd",
        "optimizer.name is sgd",
    ),
    (
        ("eval.eval_steps",),
        lambda run: run.has_held_out_rows or not run.eval.eval_steps,
        "there are no held-out rows",
    ),
    (("eval.num_generations_eval",), lambda run: run.has_held_out_rows, "there are no held-out rows"),
    (
        ("checkpoint.save_merged",),
        lambda run: run.model.lora is not None,
        "without model.lora model/ is the whole model",
    ),
    (
        ("checkpoint.greater_is_better", "checkpoint.load_best_at_end"),
        lambda run: run.checkpoint.metric_for_best is not None,
        "checkpoint.metric_for_best is absent",
    ),
)
"""Settings, whether anything reads them, and why nothing does otherwise."""


def idle_settings(run: RunConfig) -> list[str]:
    """Return a sentence for each setting that has no effect and not its default value."""
    found = []
    surrogate = run.algorithm.surrogate_name
    for name, readers in CLIPS.items():
        # A loss of one's own may read any; cispo reads epsilon where epsilon_high is absent.
        may_read = ":" in surrogate or (surrogate == "cispo" and run.algorithm.epsilon_high is None)
        if surrogate not in readers and not may_read and _is_given(run, f"algorithm.{name}"):
            found.append(f"algorithm.{name} has no effect: the loss {surrogate} does not read it")
    for settings, is_read, because in SWITCHES:
        if not is_read(run):
            found += [f"{setting} has no effect: {because}" for setting in settings if _is_given(run, setting)]
    return found + _unread_rewards(run) + _unread_prompts(run)


def _unread_rewards(run: RunConfig) -> list[str]:
    """Return what every dataset's own rewards leave unread of those of the run."""
    own, sets = run.data.own_rewards, [*run.data.datasets, *(f"eval/{name}" for name in run.data.eval_datasets)]
    if not sets or not own.keys() >= {*sets} or run.data.eval_dataset is not None:
        return []
    used = {name for rewards in own.values() for name in rewards}
    found = [f"reward {name} scores nothing: every dataset has rewards of its own" for name in run.reward.names]
    found = [told for name, told in zip(run.reward.names, found, strict=True) if name not in used]
    if run.reward.reward_weights is not None:
        found.append("reward.reward_weights has no effect: every dataset has rewards of its own, with their weights")
    return found


def _unread_prompts(run: RunConfig) -> list[str]:
    """Return the settings of prompts where nothing reads one: an environment or a program says what is asked."""
    episodes = run.episodes
    if episodes is None or not (episodes.environment or episodes.agent):
        return []
    if run.chord is not None:  # whose prompts are made by them
        return []
    player = "episodes.environment" if episodes.environment else "episodes.agent"
    unread = [name for name in ("system", "prompt_template") if getattr(run.data, name) is not None]
    unless = ", unless an Env of ms-swift's gym plays" if episodes.environment else ""
    return [
        f"data.{name} does nothing{unless}: {player} gets the row, and says itself what is asked" for name in unread
    ]


def _is_given(run: RunConfig, setting: str) -> bool:
    section_name, name = setting.split(".")
    section = attrgetter(section_name)(run)
    default = type(section).model_fields[name].default
    if section_name == "algorithm":
        default = LOSS_TYPES[run.algorithm.loss_type].settings.get(name, default)
    return bool(getattr(section, name) != default)
