"""What is odd about the token ids of a dataset's first prompt. Its other prompts are made in the same way."""

import json
from typing import TYPE_CHECKING

from .messages import read_tools
from .prompt_row import PromptRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def prompt_doubts(
    row: PromptRow, tokenizer: "PreTrainedTokenizerBase", *, dataset: str, system_replaces: bool = False
) -> list[str]:
    """Return a sentence for each oddity: two BOS tokens or none, an EOS behind the prompt, tools that are not shown,
    and a system message of the row in whose place `data.system` stands."""
    where = f"dataset {dataset}, row {row.index + 1}: the prompt"
    ids, bos, eos = row.token_ids, tokenizer.bos_token_id, tokenizer.eos_token_id
    doubts = []
    if system_replaces:
        doubts.append(f"{where} has data.system in place of the system message of its row")
    if bos is not None and ids[:2] == [bos, bos]:
        doubts.append(
            f"{where} begins with {tokenizer.bos_token} twice; take it out of the rows or of the chat template"
        )
    elif bos is not None and bos not in ids[:1] and _adds_bos(tokenizer):
        doubts.append(
            f"{where} does not begin with {tokenizer.bos_token}, which the tokenizer puts before text; does the chat "
            "template leave it out on purpose?"
        )
    if eos is not None and ids[-1:] == [eos]:
        doubts.append(
            f"{where} ends with {tokenizer.eos_token}, the end of a sequence, and the policy would go on behind it; "
            "set add_eos_token false in its tokenizer_config.json, or change the chat template"
        )
    text = tokenizer.decode(ids)
    if hidden := [name for name in _function_names(row, where) if name not in text]:
        because = "is plain text" if isinstance(row.prompt, str) else "comes from a chat template that leaves it out"
        doubts.append(f"{where} does not show the tool {hidden[0]} of its row: it {because}")
    return doubts


def _adds_bos(tokenizer: "PreTrainedTokenizerBase") -> bool:
    return tokenizer.bos_token_id in tokenizer("a")["input_ids"][:1]


def _function_names(row: PromptRow, where: str) -> list[str]:
    """The functions that the row's tools and the calls in its messages name."""
    calls = [call for message in row.prompt if isinstance(message, dict) for call in message.get("tool_calls", ())]
    functions = [tool.get("function", tool) for tool in [*read_tools(row.columns, where), *calls]]
    names = [function.get("name") for function in functions if isinstance(function, dict)]
    return [json.dumps(name, ensure_ascii=False)[1:-1] for name in names if isinstance(name, str)]
