"""Four families of chat templates in the form of the public ones (`templates/`), and by hand what each writes behind
an answer.

`follows` is the token-in token-out of somebody who builds the prompt of the next turn as a string: it knows nothing of
the code under test.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

Call = tuple[str, dict[str, Any]]
Said = Callable[[str, str, list[Call]], str]
Follows = Callable[[list[dict[str, Any]], "list[dict[str, Any]] | None", "str | None"], str]


@dataclass(frozen=True)
class Family:
    """`says(text, thought, calls)`: an answer without its end. `follows(new, tools, system)`: what stands behind it."""

    name: str
    special: tuple[str, ...]
    end: str | None
    says: Said
    follows: Follows
    tool_parser: str
    reasoning_parser: str | None = None
    plain: tuple[str, ...] = ()
    max_calls: int = 3
    alternates: bool = False
    also_ends: tuple[str, ...] = ()
    stops: tuple[str, ...] = field(default=())


def _chatml_says(text: str, thought: str, calls: list[Call]) -> str:
    written = [
        f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
        for name, arguments in calls
    ]
    return f"<think>\n{thought}\n</think>\n\n" * bool(thought) + "\n".join([*([text] if text else []), *written])


def _chatml_follows(new: list[dict[str, Any]], tools: Any, system: str | None) -> str:
    text, results = "\n", []
    for message in [*new, {"role": "assistant"}]:
        if message["role"] == "tool":
            results.append(f"\n<tool_response>\n{message['content']}\n</tool_response>")
            continue
        if results:
            text += "<|im_start|>user" + "".join(results) + "<|im_end|>\n"
            results = []
        if message["role"] == "user":
            text += f"<|im_start|>user\n{message['content']}<|im_end|>\n"
    return text + "<|im_start|>assistant\n"


def _llama_says(text: str, thought: str, calls: list[Call]) -> str:
    return json.dumps({"name": calls[0][0], "parameters": calls[0][1]}) if calls else text


def _llama_follows(new: list[dict[str, Any]], tools: Any, system: str | None) -> str:
    names = {"tool": "ipython"}
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    said = [head.format(names.get(m["role"], m["role"])) + m["content"] + "<|eot_id|>" for m in new]
    return "".join(said) + head.format("assistant")


def _mistral_says(text: str, thought: str, calls: list[Call]) -> str:
    return "[TOOL_CALLS]" + json.dumps([{"name": n, "arguments": a} for n, a in calls]) if calls else text


def _mistral_follows(new: list[dict[str, Any]], tools: Any, system: str | None) -> str:
    text = ""
    for message in new:
        if message["role"] == "tool":
            call = f'{message["content"]}, "call_id": "{message["tool_call_id"]}"'
            text += '[TOOL_RESULTS] {"content": ' + call + "}[/TOOL_RESULTS]"
        else:
            listed = f"[AVAILABLE_TOOLS] {json.dumps(tools)}[/AVAILABLE_TOOLS]" if tools else ""
            text += f"{listed}[INST] {system + chr(10) * 2 if system else ''}{message['content']}[/INST]"
    return text


def _glm_says(text: str, thought: str, calls: list[Call]) -> str:
    said = f"\n<think>{thought}</think>" + (f"\n{text}" if text else "")
    for name, arguments in calls:
        written = "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items()
        )
        said += f"\n<tool_call>{name}\n{written}</tool_call>"
    return said


def _glm_follows(new: list[dict[str, Any]], tools: Any, system: str | None) -> str:
    text, before = "", ""
    for message in new:
        if message["role"] == "tool":
            text += (
                "<|observation|>" * (before != "tool") + f"\n<tool_response>\n{message['content']}\n</tool_response>"
            )
        else:
            text += f"<|user|>\n{message['content']}"
        before = message["role"]
    return text + "<|assistant|>"


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "chatml", ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), "<|im_end|>",
            _chatml_says, _chatml_follows, "hermes", "qwen3",
            plain=("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
        ),
        Family(
            "llama",
            ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>",
             "<|eot_id|>"),
            "<|eot_id|>", _llama_says, _llama_follows, "llama3_json", max_calls=1, also_ends=("<|eom_id|>",),
            plain=("<|python_tag|>",),
        ),
        Family(
            "mistral",
            ("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]",
             "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
            "</s>", _mistral_says, _mistral_follows, "mistral", alternates=True,
        ),
        Family(
            "glm",
            ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"), None,
            _glm_says, _glm_follows, "glm45", "glm45", stops=("<|user|>", "<|observation|>"),
            plain=("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
                   "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        ),
    )
}  # fmt: skip

CORPUS = (
    "The quick brown fox jumps over the lazy dog. What is 37*52? The answer is 1924, and then the rest of it. "
    'Think about the numbers: first the tens, then the ones. {"name": "calc", "arguments": {"expr": "37*52"}} '
    "system user assistant ipython tool result content call_id parameters function description type object"
)


@cache
def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE with merges, so that the place of a cut matters, and the family's special tokens."""
    family = FAMILIES[name]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False, min_frequency=1)
    tokenizer.train_from_iterator([CORPUS] * 3, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in family.special])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in family.plain])
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=family.end or family.special[0], clean_up_tokenization_spaces=False
    )
    made.chat_template = (Path(__file__).parent / "templates" / f"{name}.jinja").read_text().removesuffix("\n")
    return made
