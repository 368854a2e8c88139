"""What a regex allows next, without an engine."""

import pytest

from grpo_proto.server.refusal import Refusal
from grpo_rollout.regex_grammar import _compile, check_regex
from tests.tiny_model import make_tokenizer

# vLLM is imported here, and uses what torch has deprecated.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def spelled(pattern: str, *added: str) -> list[list[str]]:
    """The tokens allowed at each step, taking the last of them, with `added` tokens that are not special."""
    from llguidance.torch import allocate_token_bitmask

    tokenizer = make_tokenizer()
    tokenizer.add_tokens(list(added))
    vocab_size = len(tokenizer) + 3  # a model's vocabulary is mostly padded
    grammar, mask, steps = _compile(tokenizer, vocab_size, pattern), allocate_token_bitmask(1, vocab_size), []
    while True:
        grammar.fill_bitmask(mask, 0)
        allowed = [n for n in range(vocab_size) if int(mask[0, n // 32]) >> (n % 32) & 1]
        steps.append(tokenizer.convert_ids_to_tokens(allowed))
        if allowed[-1] == tokenizer.eos_token_id:
            return steps
        assert grammar.accept_tokens("r", allowed[-1:])


def test_a_tag_that_is_one_token_is_text_of_a_regex():
    """llguidance takes such tokens for special ones, and would give up the regex."""
    steps = spelled("<think>[ab]</think>", "<think>", "</think>")
    assert steps == [["<think>"], ["a", "b"], ["</think>"], ["<eos>"]]
    assert spelled("<b>") == [["<"], ["b"], [">"], ["<eos>"]]


@pytest.mark.parametrize(
    ("pattern", "message"), [("(", "unclosed group"), ("(?=a)b", "look-around"), (r"(a)\1", "backreferences")]
)
def test_what_is_no_regex_is_refused_with_the_reason(pattern: str, message: str):
    with pytest.raises(Refusal, match=message):
        check_regex(pattern, make_tokenizer(), 101)


def test_a_tokenizer_with_more_tokens_than_the_model_has_is_refused():
    with pytest.raises(Refusal, match="needs a fast tokenizer"):
        check_regex("a", make_tokenizer(), 100)
