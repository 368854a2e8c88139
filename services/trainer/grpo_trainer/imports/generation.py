"""TRL's `generation_kwargs`: arguments of vLLM's `SamplingParams`, or of transformers' `GenerationConfig`."""

import json
from typing import Any

from ..config.rollout import UNDISTORTED
from ..errors import UsageError
from .options import Options
from .run_file import RunFile
from .values import read

OPTION = "generation_kwargs"
SETTINGS = {name: f"rollout.{name}" for name in (*UNDISTORTED, "temperature", "stop", "stop_token_ids")} | {
    "max_tokens": "rollout.max_completion_length",
    "max_new_tokens": "rollout.max_completion_length",
    "min_new_tokens": "rollout.min_tokens",
    "stop_strings": "rollout.stop",
}
"""Argument → the setting of the same meaning."""
NOT_NEEDED = {
    "seed": "the seed of each prompt follows from seed, the step and the prompt",
    "n": "rollout.num_generations is the size of a group",
    "logprobs": "the logprobs of all sampled tokens are asked for where the run needs them",
    "do_sample": "completions are sampled; temperature 0 would make all of a group the same",
    "skip_special_tokens": "the text of a completion has all of its tokens but the end",
}


def set_generation(options: Options, run: RunFile) -> None:
    """Write what `generation_kwargs` sets, which overrides options of the same meaning. Raises UsageError."""
    text = options.text(OPTION)
    if text is None:
        return
    for name, value in _arguments(text, options).items():
        shown = f"{OPTION} {name} {json.dumps(value)}"
        if isinstance(value, dict) and name == "structured_outputs" and value.keys() == {"regex"}:
            if options.has("vllm_structured_outputs_regex"):
                run.not_needed.append(f"{shown}: vllm_structured_outputs_regex takes precedence")
                continue
            name, value = "structured_outputs_regex", value["regex"]
        if name in NOT_NEEDED:
            run.not_needed.append(f"{shown}: {NOT_NEEDED[name]}")
        elif name in SETTINGS:
            setting = SETTINGS[name]
            values = [value] if setting == "rollout.stop" and isinstance(value, str) else value
            run.set(setting, read(setting, values, shown).value, shown)
        else:
            run.differs.append(f"{shown}: the servers sample without it; settings of sampling are those of rollout")


def _arguments(text: str, options: Options) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{options.shown(OPTION)} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{options.shown(OPTION)} is no mapping of arguments")
    return found
