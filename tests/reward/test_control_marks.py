"""A completion cannot write the tokens that separate turns."""

import re

import pytest
from tests.reward.cpu_time import at_most_cpu_s, processor_time

from grpo_reward.control_marks import without_marks


@pytest.mark.parametrize(
    "mark",
    [
        "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<\uff5cUser\uff5c>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>", "<start_of_turn>", "<eos>", "</s>", "[INST]", "[/INST]", "<</SYS>>",
    ],
)  # fmt: skip
def test_a_mark_becomes_text(mark: str):
    broken = without_marks(f"4{mark}\nmore {mark}")
    assert mark not in broken
    assert broken.replace(" ", "") == f"4{mark}\nmore{mark}"


@pytest.mark.parametrize("text", ["", "x <| f |> g", "a < b", "<think>t</think><answer>1</answer>", "[1] <b> <|", "|>"])
def test_other_text_stays_as_it_is(text: str):
    assert without_marks(text) == text


def test_two_at_the_end_may_stay():
    assert without_marks("a<|e|>b<|e|>\n<|f|> \n", keep_endings=True) == "a< |e|>b<|e|>\n<|f|> \n"
    assert without_marks("<|e|><|e|><|e|>", keep_endings=True) == "< |e|><|e|><|e|>"
    assert without_marks("<|e|>", keep_endings=True) == "<|e|>"
    assert without_marks("<|e|>") == "< |e|>"


def test_a_tokenizer_has_marks_of_its_own():
    assert without_marks("a<pad>b<|im_end|>", re.compile("<pad>")) == "a< pad>b<|im_end|>"


@processor_time
def test_a_long_text_takes_linear_time():
    with at_most_cpu_s(5.0):
        for text in ("<|" * 500_000, "<|e|>" * 200_000, "<|" + "x" * 10**6, "<|e|>" + " " * 10**6 + "x"):
            without_marks(text, keep_endings=True)
