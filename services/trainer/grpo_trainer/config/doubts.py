"""Settings that are allowed and seldom intended: the trainer logs a warning for each when a run starts.

They are no errors because existing run files contain them.
"""

from .algorithm import LOSS_TYPES, AlgorithmConfig
from .idle_settings import idle_settings
from .run_config import RunConfig
from .teacher import teacher_setting

LOWEST_LORA_RATE = 5e-6
"""LoRA learns best at about ten times the learning rate of full fine-tuning ("LoRA Without Regret", Thinking Machines
Lab, 2025), for which RL takes 1e-6 and below."""
LOWEST_SGD_RATE = 1e-4
"""Below it an update of plain descent, whose gradient is clipped, is a rounding of the weights."""

TIME_OUTS = (
    ("reward", "timeout_s", "reward", "deadline_s", "one slow sample ends the request of all"),
    ("weights", "bucket_timeout_s", "weights", "push_deadline_s", "a late bucket leaves no time to repeat a push"),
    ("weights", "bucket_timeout_s", "weights", "lease_s", "a late bucket outlasts the lease"),
)
"""Section and key of a timeout, section and key of the timeout that must be longer, and the damage when it is not."""


def _clips_of_another_loss(algorithm: AlgorithmConfig) -> list[str]:
    """Clips of another preset than `loss_type`'s, as a run file has them whose `loss_type` was changed alone."""
    found = []
    if algorithm.surrogate_name == algorithm.loss_type == "cispo" and algorithm.upper_epsilon < 1.0:
        found.append(
            f"algorithm.epsilon_high {algorithm.upper_epsilon:g} bounds the ratios themselves with cispo, and most "
            "are above; its preset has 5"
        )
    own = LOSS_TYPES[algorithm.loss_type].settings
    for name in ("epsilon", "epsilon_high"):
        value = getattr(algorithm, name)
        default = own.get(name, AlgorithmConfig.model_fields[name].default)
        of = [loss_type for loss_type, preset in LOSS_TYPES.items() if preset.settings.get(name) == value]
        # Ratios of whole episodes have GSPO's clip under any preset.
        of_episodes = algorithm.importance_sampling_level != "token" and "gspo" in of
        if value != default and of and algorithm.loss_type not in of and not of_episodes:
            found.append(
                f"algorithm.{name} {value:g} is the clip of loss_type {of[0]}, and loss_type is {algorithm.loss_type}"
            )
    return found


def _teachers_without_hold(config: RunConfig) -> list[str]:
    """Teachers that are the policy and whose datasets have nothing beside them."""
    if config.algorithm.beta > 0.0:
        return []
    return [
        f"{teacher_setting(dataset, config)}.of_itself without rewards and with algorithm.beta 0: policy and teacher "
        "move together, and nothing keeps them from agreeing on texts of no use; add a reward or beta, or let a server "
        "of the first model teach (url)"
        for dataset, teacher in config.teachers.items()
        if teacher.of_itself and (teacher.only or not config.data.own_rewards.get(dataset, config.reward.weights))
    ]


def doubts(config: RunConfig) -> list[str]:
    """Return one sentence for each doubtful setting."""
    found = []
    if config.rollout.distorting:
        names = ", ".join(config.rollout.distorting)
        found.append(f"{names}: the policy is trained as if it had sampled without, over all tokens")
    rate = config.optimizer.learning_rate
    if config.model.lora is not None and 0 < rate < LOWEST_LORA_RATE:
        found.append(
            f"optimizer.learning_rate {rate:g} is one of full fine-tuning: with model.lora take about ten times as much"
        )
    if config.optimizer.name == "sgd" and 0 < rate < LOWEST_SGD_RATE:
        decay = ", and what weight_decay takes" if config.optimizer.weight_decay else ""
        found.append(
            f"optimizer.learning_rate {rate:g} is one of AdamW: an update of sgd moves all weights together by at most "
            f"{rate * config.optimizer.max_grad_norm:g}, learning_rate x max_grad_norm{decay}"
        )
    surrogate = config.algorithm.loss
    if surrogate in LOSS_TYPES and surrogate != config.algorithm.loss_type:
        meant = LOSS_TYPES[surrogate].settings
        others = [f"{name} {value}" for name, value in meant.items() if getattr(config.algorithm, name) != value]
        if others:
            found.append(
                f"algorithm.loss {surrogate} is without what loss_type {surrogate} sets beside it: {', '.join(others)}"
            )
    found += _clips_of_another_loss(config.algorithm)
    found += _teachers_without_hold(config)
    if config.algorithm.sync_ref_model and config.model.dtype == "bfloat16":
        found.append(
            "algorithm.sync_ref_model in bfloat16 rounds each move of the reference: below a mixup alpha of 0.5 it "
            "follows more slowly, above faster; with model.dtype float32 exactly"
        )
    if config.guards.kl in ("rollback", "stop") and config.algorithm.beta == 0.0:
        found.append(f"guards.kl {config.guards.kl} never acts: with algorithm.beta 0 no KL is measured")
    if config.guards.zero_spread in ("rollback", "stop") and config.untaught == []:
        found.append(f"guards.zero_spread {config.guards.zero_spread} never acts: a teacher teaches every dataset")
    if config.teacher is not None and config.teacher not in config.teachers.values():
        found.append("the section teacher teaches nothing: every dataset has a teacher of its own")
    found += idle_settings(config)
    for section, name, longer_section, longer, why in TIME_OUTS:
        value, limit = getattr(getattr(config, section), name), getattr(getattr(config, longer_section), longer)
        if value >= limit:
            found.append(f"{section}.{name} {value:g} is not below {longer_section}.{longer} {limit:g}: {why}")
    return found
