"""What a value of TRL or ms-swift is in a setting of ours, where it is written otherwise."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ..config.algorithm import LOSS_TYPES
from ..config.lora import ALL_LINEAR
from ..config.lr_schedule import PARAMETERS as SCHEDULES
from ..errors import UsageError
from .options import truth_of
from .run_file import checked, field_of

KEPT_ALL = 1000
TRACKERS = ("tensorboard", "wandb", "trackio", "swanlab", "mlflow")
LONGEST_TIMEOUT_S = 86400
FOLLOWING_A_METRIC = ("reduce_lr_on_plateau", "greedy")
"""Schedules of transformers that are no function of the step."""

OPTIMIZERS = {
    "adamw": "adamw", "adamw_32bit": "adamw", "adamw_hf": "adamw", "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw", "adamw_torch_npu_fused": "adamw", "adamw_torch_xla": "adamw",
    "adamw_8bit": "adamw_8bit", "adamw_bnb_8bit": "adamw_8bit", "sgd": "sgd",
}  # fmt: skip
"""transformers' name of an optimizer, without `paged_` → ours."""
OF_MATRICES = ("adafactor", "muon", "galore", "apollo", "lomo", "adalomo")
NO_MATRICES = "it needs whole matrices, and ZeRO gives an optimizer flat parts"


@dataclass(frozen=True)
class Read:
    """A value in our words. `reason` says what is otherwise than was asked for."""

    value: Any
    reason: str | None = None


def read(setting: str, given: Any, shown: str) -> Read:
    """The value of `setting` that `given` stands for: the texts of an option, or a default. Raises UsageError."""
    given = _single(setting, given)
    if setting in _READERS:
        found = _READERS[setting](given, shown)
        return Read(checked(setting, found.value, shown), found.reason)
    if isinstance(given, str) and field_of(setting).annotation is bool:
        given = truth_of(given, shown)
    return Read(checked(setting, given, shown))


def _single(setting: str, given: Any) -> Any:
    """One text where there is one; a list stays a list for settings that are lists."""
    if isinstance(given, list) and "list[" in str(field_of(setting).annotation):
        return json.loads(given[0]) if len(given) == 1 and str(given[0]).startswith("[") else given
    if isinstance(given, list) and len(given) == 1:
        return given[0]
    return given


def _fallback(choices: dict[str, Any], otherwise: Callable[[str], Read]) -> Callable[[Any, str], Read]:
    def reader(given: Any, _: str) -> Read:
        word = str(given).lower()
        return Read(choices[word]) if word in choices else otherwise(str(given))

    return reader


def _schedule(name: str) -> Read:
    if name not in FOLLOWING_A_METRIC:
        raise UsageError(f"there is no schedule {name}", hint=f"there are {', '.join(SCHEDULES)}")
    return Read("constant", f"there is no schedule {name}, which follows a metric; constant stands in its place")


def _attention(name: str) -> Read:
    if name.startswith("flash") or "flash" in name:
        return Read("flash_attention_2", f"attention is sdpa, eager or flash_attention_2, not {name}")
    return Read("sdpa", f"attention is sdpa, eager or flash_attention_2, not {name}")


def _loss(name: str) -> Read:
    if name in LOSS_TYPES:
        return Read(name)
    if close := get_close_matches(name, LOSS_TYPES, n=1, cutoff=0.8):
        raise UsageError(f"there is no loss {name}", hint=f"did you mean {close[0]}?")
    return Read("grpo", f"the loss {name} is not among ours (docs/losses.md): grpo stands in its place")


def _trackers(given: Any, _: str) -> Read:
    words = given if isinstance(given, list) else [given]
    words = [word for entry in words for word in str(entry).split(",") if word not in ("none", "")]
    unknown = [word for word in words if word not in TRACKERS]
    reason = f"there is no tracker {', '.join(unknown)}; there are {', '.join(TRACKERS)}" if unknown else None
    return Read([word for word in words if word in TRACKERS], reason)


def _truth(when_true: Any, when_false: Any) -> Callable[[Any, str], Read]:
    def reader(given: Any, shown: str) -> Read:
        return Read(when_true if given is True or (given is not False and truth_of(str(given), shown)) else when_false)

    return reader


def _none_is(value: Any, reason: str | None = None) -> Callable[[Any, str], Read]:
    return lambda given, _: Read(value, reason) if given is None else Read(given)


def _top_k(given: Any, _: str) -> Read:
    return Read(0 if str(given) == "-1" or given is None else given)


def _mapping(given: Any, shown: str) -> Read:
    try:
        return Read(json.loads(given) if isinstance(given, str) else given or {})
    except ValueError as error:
        raise UsageError(f"{shown} is no JSON: {error}") from error


def _number(given: Any, shown: str) -> float:
    try:
        return float(given)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{shown} is no number") from error


def _optimizer(given: Any, _: str) -> Read:
    name = str(given).lower()
    plain = name.removeprefix("paged_")
    kept = None if plain == name else "its state is not paged; deepspeed.offload_optimizer keeps it in CPU memory"
    if plain in OPTIMIZERS:
        return Read(OPTIMIZERS[plain], kept)
    known = ", ".join(dict.fromkeys(OPTIMIZERS.values()))
    why = f"; {NO_MATRICES}" if plain.startswith(OF_MATRICES) else ""
    return Read("adamw", f"there is no optimizer {name}{why}; there are {known}, and adamw stands in its place")


def _timeout(given: Any, shown: str) -> Read:
    if _number(given, shown) <= LONGEST_TIMEOUT_S:
        return Read(given)
    return Read(LONGEST_TIMEOUT_S, "a day is the most there is")


def _norm(given: Any, shown: str) -> Read:
    if _number(given, shown) > 0:
        return Read(given)
    return Read(1e6, "gradients are always clipped; 1e6 is far above any norm")


def target_modules(given: Sequence[str]) -> Any:
    """PEFT's `target_modules`: names, or a regular expression where a single text is none."""
    return ALL_LINEAR if list(given) == [ALL_LINEAR] else list(given)


_READERS: dict[str, Callable[[Any, str], Read]] = {
    "rollout.top_k": _top_k,
    "rollout.min_p": _none_is(0.0),
    "checkpoint.save_total_limit": _none_is(KEPT_ALL, "all are kept"),
    "algorithm.scale_rewards": _fallback({"true": "group", "false": "none", "none": "none"}, Read),
    "algorithm.kl_estimator": _truth("unbiased", "k3"),
    "algorithm.router_aux_loss_coef": _none_is("model"),
    "algorithm.max_staleness": _truth(1, 0),
    "algorithm.loss_type": _fallback({"none": "grpo"}, _loss),
    "model.head_dtype": _truth("float32", "model"),
    "model.attn_implementation": _fallback(
        {"none": "sdpa", "sdpa": "sdpa", "eager": "eager", "flash_attention_2": "flash_attention_2",
         "flash_attn": "flash_attention_2"},
        _attention,
    ),
    "optimizer.name": _optimizer,
    "optimizer.lr_scheduler_type": _fallback(
        {name: name for name in SCHEDULES} | {"constant_with_warmup": "constant"}, _schedule
    ),
    "optimizer.lr_scheduler_kwargs": _mapping,
    "optimizer.max_grad_norm": _norm,
    "logging.report_to": _trackers,
    "data.chat_template_kwargs": _mapping,
    "deepspeed.timeout_s": _timeout,
}  # fmt: skip
