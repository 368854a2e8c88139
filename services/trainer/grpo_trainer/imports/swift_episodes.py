"""ms-swift's gym environments and schedulers of several turns become the section `episodes`."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from .options import Options, given
from .run_file import RunFile

PLAYERS = ("multi_turn_scheduler", "gym_env", "use_gym_env")
GYM = "gym_scheduler"
"""ms-swift's own: it plays a gym environment alone, which needs no scheduler here."""
LIMITS = ("max_turns", "completion_length_limit_scope")


def set_swift_episodes(options: Options, server: Options, run: RunFile) -> None:
    """Write what plays the episodes, its limits and its reward.

    `server` is the command `swift rollout`, which has these options where ms-swift samples on a server; the trainer's
    come first.
    """
    of = {name: options if options.has(name) else server for name in (*PLAYERS, *LIMITS)}
    for name in (*of, "external_plugins"):
        for command in (options, server):
            command.values(name)  # read, whatever becomes of it
    shown = [of[name].shown(name) for name in of if of[name].has(name)]
    scheduler, gym_env = of["multi_turn_scheduler"].text("multi_turn_scheduler"), of["gym_env"].text("gym_env")
    asked = of["use_gym_env"].truth("use_gym_env")
    pays = gym_env is not None if asked is None else asked
    if scheduler is None and not pays:
        run.not_needed += [f"{one}: each completion is one turn" for one in shown]
        return
    why = "; ".join(of[name].shown(name) for name in PLAYERS if of[name].has(name))
    files = [*(options.values("external_plugins") or []), *(server.values("external_plugins") or [])]
    is_gym = scheduler is None or (scheduler == GYM and _registered("multi_turns", GYM, files) is None)
    setting, registry = ("environment", "envs") if is_gym else ("multi_turn_scheduler", "multi_turns")
    wanted = gym_env if is_gym else scheduler
    played_by = _registered(registry, wanted, files)
    if played_by is None:
        run.differs += [f"{one}: completions are single turns" for one in shown]
        run.differs.append(
            f"{wanted or 'an environment'} is registered in {registry} by none of --external_plugins: name its class "
            f"in episodes.{setting}, FILE.py:CLASS"
        )
        return
    run.set(f"episodes.{setting}", played_by, why)
    _set_limits(options, of["max_turns"], run)
    _set_weight(options, run, pays=pays)
    if not is_gym and gym_env is not None and (others := _all_registered("envs", files) - {gym_env}):
        run.differs.append(
            f"{of['gym_env'].shown('gym_env')}: a scheduler is not told it, and {', '.join(sorted(others))} is "
            f'registered, too: write {{"name": "{gym_env}"}} into the column env_config of each row'
        )
    if is_gym:
        run.differs.append("a turn that is cut ends its episode; a gym environment of ms-swift goes on")
    if is_gym and run.value("algorithm.mask_truncated_completions"):
        run.differs.append(
            f"{options.shown('overlong_filter')}: masked is also an episode that meets max_turns before its "
            "environment is done"
        )


def _registered(registry: str, name: str | None, files: Sequence[str]) -> str | None:
    """Return `FILE.py:CLASS` of what a file registers under `name`, by its text; of the first one without a name."""
    key = re.escape(name) if name is not None else r"[^'\"]+"
    patterns = [rf"{registry}\s*\[\s*['\"]{key}['\"]\s*\]\s*=\s*(\w+)"]
    if name is not None:
        patterns.append(rf"['\"]{key}['\"]\s*:\s*(\w+)")
    for file, text in _texts(files):
        for pattern in patterns:
            if (found := re.search(pattern, text)) is not None:
                return f"{file}:{found[1]}"
    return None


def _all_registered(registry: str, files: Sequence[str]) -> set[str]:
    """Return the names that files register one by one."""
    pattern = re.compile(rf"{registry}\s*\[\s*['\"]([^'\"]+)['\"]\s*\]\s*=(?!=)")
    return {name for _, text in _texts(files) for name in pattern.findall(text)}


def _texts(files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each file that can be read, with its text."""
    for file in files:
        with suppress(OSError, UnicodeDecodeError):
            yield file, Path(file).read_text(encoding="utf-8")


def _set_limits(options: Options, of_turns: Options, run: RunFile) -> None:
    turns = of_turns.whole("max_turns")
    if turns is not None:
        run.set("episodes.max_turns", turns, of_turns.shown("max_turns"))
    else:
        turns = run.value("episodes.max_turns")
        run.differs.append(
            f"max_turns is not given: ms-swift has no limit, and an episode here has at most {turns} turns "
            "(episodes.max_turns)"
        )
    limit = run.value("rollout.max_completion_length")
    shown = "; ".join(given(options, "completion_length_limit_scope"))
    if options.text("completion_length_limit_scope") == "total":
        if options.text("vllm_mode") != "server":
            run.differs.append(f"{shown}: counted are the tokens that the policy samples, and not what is said to it")
            return
        shown += ", which ms-swift does not read with a server: per_round"
    why = shown or "ms-swift's default of completion_length_limit_scope, per_round"
    run.set("episodes.max_turn_tokens", limit, f"max_completion_length; {why}")
    run.set("rollout.max_completion_length", limit * turns, f"of all turns: max_completion_length {limit} x {turns}")


def _set_weight(options: Options, run: RunFile, *, pays: bool) -> None:
    """Write the environment's weight: the last of `reward_weights`, where it pays."""
    if not pays:
        run.set(
            "episodes.reward_weights", {"environment": 0.0}, "no use_gym_env: the rewards are those of reward_funcs"
        )
        return
    others = len(options.values("reward_funcs") or []) + len(options.values("reward_model") or [])
    weights = run.value("reward.reward_weights")
    if weights is None or len(weights) != others + 1:
        return
    shown = options.shown("reward_weights")
    run.set("episodes.reward_weights", {"environment": weights[-1]}, f"{shown}: the last is the environment's")
    if others:
        run.set("reward.reward_weights", weights[:-1], f"{shown}, less the environment's")
    else:
        run.entries.pop("reward.reward_weights")
