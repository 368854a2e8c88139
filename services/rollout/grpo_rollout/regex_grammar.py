"""Compile the regexes that completions have to match, by llguidance and within limits, inside vLLM's engine process.

vLLM's own choice, xgrammar, bounds neither the time nor the memory of a token: `((a{0,200}){0,200}){0,200}` compiles at
once, and the twenty-fifth token takes seconds, in the loop that all requests wait for. llguidance gives up where a
limit is exceeded; vLLM then ends the sequence as if the policy had, and this module ends it as an error. A JSON schema
or a grammar is not offered: in llguidance too some end the process (`{"type": "array", "maxItems": 100000000}` by its
memory, thousands of rules that refer to each other by the stack).
"""

from functools import cache, partial
from typing import Any

from grpo_proto.server.refusal import Refusal

LIMITS: dict[str, Any] = {"initial_lexer_fuel": 100_000, "max_lexer_states": 20_000, "verbose_errors": False}
"""Ten times below llguidance's own: the worst patterns found take 60 ms a token and 26 MB a sequence, where those take
1.8 s and 180 MB. `(\\w+ ){1,200}` stays within them, with a vocabulary of 150,000."""


def check_regex(pattern: str, tokenizer: Any, vocab_size: int) -> None:
    """Raises Refusal (422) for a regex that cannot be compiled, or that this model's tokenizer has no masks for."""
    import llguidance

    if not _is_supported(tokenizer, vocab_size):
        raise Refusal.invalid(
            "no_structured_outputs",
            "sampling.structured_outputs needs a fast tokenizer of Hugging Face, with no more tokens than the model",
            "leave it out; a reward such as `regex` can ask for a form",
        )
    grammar = llguidance.grammar_from("regex", pattern)
    if error := llguidance.LLMatcher.validate_grammar(grammar, limits=_limits()):
        raise Refusal.invalid(
            "bad_regex",
            f"sampling.structured_outputs.regex cannot be compiled: {error[:300]}",
            "the syntax is that of Rust's crate regex, without look-around and back-references",
        )


def given_up() -> Refusal:
    """Return the answer to a request whose regex the engine has given up."""
    return Refusal.invalid(
        "regex_given_up",
        "the engine has given up sampling.structured_outputs.regex: no token continues it, or it has too many states",
        "write it without the text of special tokens, without characters that the vocabulary lacks, and without large "
        "or nested counted repetitions such as (.{0,200}){0,200}",
    )


def compile_regexes_within_limits() -> None:
    """Have the engine of this process compile every regex here, also those of vLLM's own routes."""
    from vllm.v1.structured_output import StructuredOutputManager
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    by_vllm = StructuredOutputManager.grammar_init

    def grammar_init(manager: Any, request: Any) -> None:
        wanted = request.structured_output_request
        vocab_size = manager.vllm_config.model_config.get_vocab_size()
        kind, pattern = wanted.structured_output_key if wanted is not None else (None, "")
        if kind != StructuredOutputOptions.REGEX or not _is_supported(manager.tokenizer, vocab_size):
            by_vllm(manager, request)
            return
        if manager._grammar_bitmask is None:
            # vLLM allocates it for the backend of its first request, which a regex leaves undecided.
            from llguidance.torch import allocate_token_bitmask

            config = manager.vllm_config
            rows = config.scheduler_config.max_num_seqs * (1 + config.num_speculative_tokens)
            manager._grammar_bitmask = allocate_token_bitmask(rows, vocab_size)
        wanted.grammar = manager.executor.submit(_compile, manager.tokenizer, vocab_size, pattern)

    StructuredOutputManager.grammar_init = grammar_init


def _is_supported(tokenizer: Any, vocab_size: int) -> bool:
    from vllm.tokenizers.mistral import MistralTokenizer
    from vllm.v1.structured_output.backend_guidance import GuidanceBackend

    if isinstance(tokenizer, MistralTokenizer) or not GuidanceBackend.is_tokenizer_supported(tokenizer):
        return False
    return len(tokenizer) <= vocab_size


@cache
def _tokens_of(tokenizer: Any, vocab_size: int) -> Any:
    """Return the vocabulary as llguidance reads it, with all tokens as text but the special ones.

    llguidance takes every added token that looks like `<think>` for special, and then nothing can match its text.
    """
    import llguidance
    from llguidance.hf import from_tokenizer

    found = from_tokenizer(tokenizer, vocab_size)
    texts = {token_id: token.content for token_id, token in tokenizer.added_tokens_decoder.items() if not token.special}
    if not any(found.is_special_token(token_id) for token_id in texts):
        return found

    vocabulary = _Vocabulary(tokenizer)
    vocabulary.eos_token_id = found.eos_token
    special = [token_id for token_id in range(vocab_size) if found.is_special_token(token_id)]
    vocabulary.special_token_ids = [token_id for token_id in special if token_id not in texts]
    vocabulary.tokens = [found.decode_bytes([token_id]) for token_id in range(vocab_size)]
    for token_id, text in texts.items():
        vocabulary.tokens[token_id] = text.encode()
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(vocabulary))


class _Vocabulary:
    """What llguidance reads of a tokenizer: the bytes of each token by id, and the tokens of a text."""

    eos_token_id: int
    bos_token_id: int | None = None
    special_token_ids: list[int]
    tokens: list[bytes]

    def __init__(self, tokenizer: Any):
        self._encode = partial(tokenizer.encode, add_special_tokens=False)

    def __call__(self, text: str) -> list[int]:
        token_ids: list[int] = self._encode(text)
        return token_ids


def _compile(tokenizer: Any, vocab_size: int, pattern: str) -> Any:
    """Return the grammar of one sequence. Raises ValueError, which vLLM makes the error of this sequence alone."""
    import llguidance
    from vllm.v1.structured_output.backend_guidance import GuidanceGrammar

    class BoundedGrammar(GuidanceGrammar):  # type: ignore[misc]
        def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
            """Return False, which ends the sequence as an error, once llguidance has given up."""
            return super().accept_tokens(request_id, tokens) and not self.ll_matcher.is_error()

    grammar, vocabulary = llguidance.grammar_from("regex", pattern), _tokens_of(tokenizer, vocab_size)
    matcher = llguidance.LLMatcher(vocabulary, grammar, log_level=0, limits=_limits())
    if matcher.is_error():
        raise ValueError(matcher.get_error()[:300])
    return BoundedGrammar(ll_matcher=matcher, ll_tokenizer=vocabulary, vocab_size=vocab_size)


def _limits() -> Any:
    import llguidance

    return llguidance.LLParserLimits(**LIMITS)
