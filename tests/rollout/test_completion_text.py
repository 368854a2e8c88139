"""What a completion's text leaves out: the token that ended it, and nothing that a reward reads."""

from dataclasses import dataclass, field

import pytest

from grpo_proto.messages.rollout import Sampling
from grpo_rollout.completion_text import CompletionText
from tests.tiny_model import make_tokenizer


@dataclass
class Sampled:
    """What vLLM reports of a completion."""

    token_ids: list[int]
    finish_reason: str = "stop"
    stop_reason: int | str | None = field(default=None)


@pytest.fixture(scope="module")
def tokenizer():
    made = make_tokenizer()
    made.add_special_tokens({"additional_special_tokens": ["<answer>", "</answer>", "[TOOL_CALLS]", "<|im_end|>"]})
    return made


@pytest.mark.parametrize(
    ("sampled", "stop", "stop_ids", "finish_reason", "stop_reason", "text"),
    [
        ("<answer>7</answer><eos>", [], [], "stop", None, "<answer>7</answer>"),
        ("[TOOL_CALLS]a<|im_end|>", [], ["<|im_end|>"], "stop", "id", "[TOOL_CALLS]a"),
        ("<answer>7</answer>", ["</answer>"], [], "stop", "id", "<answer>7</answer>"),
        ("<answer>7</answer>", [], ["</answer>"], "stop", "id", "<answer>7"),
        ("<answer>7</answer>", ["</answer>"], ["</answer>"], "stop", "id", "<answer>7"),
        ("7<|im_end|>", ["<|im_end|>"], [], "stop", "id", "7"),
        ("so 7.", ["7."], [], "stop", "7.", "so 7."),
        ("7 , no<|im_end|>", [], [], "length", None, "7 , no<|im_end|>"),
        ("7<eos><pad><pad>", [], [], "length", None, "7<eos>"),
        ("<eos>", [], [], "stop", None, ""),
    ],
)
def test_text_is_what_was_sampled_less_what_ended_it(
    tokenizer, sampled, stop, stop_ids, finish_reason, stop_reason, text
):
    token_ids = tokenizer.encode(sampled, add_special_tokens=False)
    sampling = Sampling(stop=stop, stop_token_ids=[tokenizer.convert_tokens_to_ids(one) for one in stop_ids])
    reason = token_ids[-1] if stop_reason == "id" else stop_reason
    completion = Sampled(token_ids, finish_reason, reason)
    assert CompletionText(tokenizer).texts([completion], sampling) == [text]
