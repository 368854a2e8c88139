"""A prompt that ends with text which a reward reads as the completion's own, such as `<think>`."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from grpo_proto import RewardDescription, RewardSpec

from ..data.prompt_row import PromptRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

THINK = "<think>"


def prefix_doubts(
    rows: Sequence[PromptRow],
    tokenizer: "PreTrainedTokenizerBase",
    specs_of: Callable[[str], Sequence[RewardSpec]],
    known: Mapping[str, RewardDescription],
) -> list[str]:
    """Return a sentence for each reward whose parameter `prefix` does not fit how the prompts end.

    `rows` are the first ones of the datasets, `known` are the served rewards by name. A reward takes a prefix when its
    parameter of that name is a text that is empty by default.
    """
    found: dict[str, None] = {}
    for row in rows:
        ending = tokenizer.decode(row.token_ids).rstrip()
        for spec in specs_of(row.dataset):
            if spec.name in known and _takes_prefix(known[spec.name]):
                prefix = str(spec.params.get("prefix") or "").strip()
                setting = f"reward.params.{spec.name}.prefix"
                if not prefix and ending.endswith(THINK):
                    doubt = f"{_prompts(row)} end with {THINK}, so no completion has it, and {spec.name} looks for it"
                    found[f'{doubt}: set {setting} to "{THINK}"'] = None
                elif prefix and not ending.endswith(prefix):
                    found[f"{setting} puts {prefix} before completions, and {_prompts(row)} do not end with it"] = None
    return list(found)


def _takes_prefix(reward: RewardDescription) -> bool:
    prefix = reward.params_schema.get("properties", {}).get("prefix", {})
    return {"type": "string", "default": ""}.items() <= dict(prefix).items()


def _prompts(row: PromptRow) -> str:
    return {"": "the prompts", "eval/": "the held-out prompts"}.get(row.dataset, f"the prompts of {row.dataset}")
