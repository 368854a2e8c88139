"""ms-swift's rewards: its own by their names, those of plugins, reward models."""

from typing import Any

from ..errors import UsageError
from .options import Options, given
from .rewards import Found, OurReward, add_models, add_plugin, missing, registered_in, registers, set_rewards
from .run_file import RunFile

REWARDS = {
    "accuracy": OurReward("accuracy", {"unparsable": 0.0}),
    "math": OurReward(
        "math_boxed", remark="ms-swift's `math` evaluates the last box; `math_boxed` compares it by math_verify"
    ),
    "format": OurReward("format"),
    "react_format": OurReward("react_format"),
    "cosine": OurReward("cosine"),
    "repetition": OurReward("repetition"),
    "soft_overlong": OurReward("soft_overlong"),
}
"""Those of ms-swift's `orms` that there are here. Parameters of options are added below."""
PARAMS = {
    "cosine": {
        "max_len": "cosine_max_len",
        "min_len_value_correct": "cosine_min_len_value_correct",
        "max_len_value_correct": "cosine_max_len_value_correct",
        "min_len_value_wrong": "cosine_min_len_value_wrong",
        "max_len_value_wrong": "cosine_max_len_value_wrong",
    },
    "repetition": {"n_grams": "repetition_n_grams", "max_penalty": "repetition_max_penalty"},
    "soft_overlong": {"max_len": "soft_max_length", "cache_len": "soft_cache_length"},
}
"""Reward → parameter → option."""
BUILT_IN_WITHOUT = {"toolbench"}


def set_swift_rewards(options: Options, run: RunFile) -> list[str]:
    """Write the rewards; return the arguments of the reward server."""
    names, plugins = options.values("reward_funcs") or [], options.values("external_plugins") or []
    models = options.values("reward_model") or []
    found = Found()
    gone = missing(plugins)
    run.differs += [f"--external_plugins {plugin}: there is no such file" for plugin in gone]
    for i, name in enumerate(names):
        plugin = registered_in(name, plugins)
        if plugin is not None:
            found.funcs.append(f"{plugin}:{name}")
            add_plugin(found, plugin)
        elif name in REWARDS:
            found.add(_with_options(options, run, name))
            found.params_shown += given(options, *PARAMS.get(name, {}).values())
        elif name in BUILT_IN_WITHOUT:
            found.left_out.append(i)
            run.differs.append(f"reward {name}: there is none of its kind here; it is left out")
        else:
            found.funcs.append(name)
            named = f" one of {', '.join(plugins)} has to register it" if plugins else " no --external_plugins names it"
            run.differs.append(f"reward {name} is none of ms-swift's own, and{named}: the reward server has to have it")
    players = [str(run.value(f"episodes.{name}")) for name in ("environment", "multi_turn_scheduler")]
    for plugin in plugins:
        if any(player.startswith(f"{plugin}:") for player in players) and not registers(plugin):
            continue
        if plugin not in gone or any(name not in REWARDS for name in names):
            add_plugin(found, plugin)
    add_models(found, models)
    _report_params(options, run, [name for name in names if name in PARAMS])
    shown = "; ".join(given(options, "reward_funcs", "reward_model", "external_plugins"))
    weights = options.shown("reward_weights") if options.has("reward_weights") else ""
    set_rewards(run, found, shown, weights)
    return found.arguments


def _with_options(options: Options, run: RunFile, name: str) -> OurReward:
    ours = REWARDS[name]
    if ours.remark:
        run.differs.append(ours.remark)
    params: dict[str, Any] = dict(ours.params)
    for parameter, option in PARAMS.get(name, {}).items():
        number = options.number(option)
        params[parameter] = options.peer.default(option) if number is None else number
    if name in ("cosine", "soft_overlong") and params["max_len"] is None:
        params["max_len"] = run.value("rollout.max_completion_length")
    if name == "soft_overlong" and params["cache_len"] is None:
        raise UsageError("--soft_cache_length is missing: ms-swift's soft_overlong needs it")
    return OurReward(ours.name, params)


def _report_params(options: Options, run: RunFile, used: list[str]) -> None:
    for name, params in PARAMS.items():
        for option in params.values():
            if options.has(option) and name not in used:
                options.values(option)
                run.not_needed.append(f"{options.shown(option)}: the reward {name} is not used")
