"""The text of a completion: its own token ids decoded, without the token that ended it.

What a reward reads is then what is trained. Special tokens stay, and so does a stop string; vLLM's own text has
neither.
"""

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from grpo_proto.messages.rollout import Sampling

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput

_CLOSING_TAG = re.compile(r"[<\[]\|?/\w")


class CompletionText:
    """Decodes completions with the server's tokenizer, and finds the ids of stop strings."""

    def __init__(self, tokenizer: Any):
        self._pad_token_id: int | None = getattr(tokenizer, "pad_token_id", None)
        self._decode = partial(tokenizer.batch_decode, skip_special_tokens=False)
        if isinstance(tokenizer, PreTrainedTokenizerBase):
            # Keep the spaces before punctuation, which some tokenizers would take away.
            self._decode = partial(self._decode, clean_up_tokenization_spaces=False)
        self._special_tokens = special_tokens(tokenizer)

    def stops(self, sampling: Sampling) -> dict[str, Any]:
        """Return the parameters of vLLM that end a completion.

        Send a stop string that is a special token as its id, too: the engine itself ends a sequence at an id. For a
        string it waits for the text, which the server process decodes while the engine samples on.

        Have special tokens searched only for a stop string that holds one: the stop string "user" would end a
        completion at the token <|user|>.
        """
        strings = (self._special_tokens[text] for text in sampling.stop if text in self._special_tokens)
        holds_special = any(token in text for text in sampling.stop for token in self._special_tokens)
        return {
            "stop": sampling.stop or None,
            "stop_token_ids": list(dict.fromkeys([*sampling.stop_token_ids, *strings])),
            "skip_special_tokens": not holds_special,
        }

    def decode(self, token_ids: list[list[int]]) -> list[str]:
        """Return the text of each of `token_ids`, special tokens included."""
        return list(self._decode(token_ids))

    def texts(self, completions: "list[CompletionOutput]", sampling: Sampling) -> list[str]:
        """Return the text of each of `completions`, which were sampled with `sampling`."""
        tags = [text for text in sampling.stop if text in self._special_tokens and _CLOSING_TAG.match(text)]
        kept = {self._special_tokens[tag] for tag in tags} - set(sampling.stop_token_ids)
        texts: list[str] = self._decode([self._without_end(completion, kept) for completion in completions])
        return texts

    def _without_end(self, completion: "CompletionOutput", kept: set[int]) -> list[int]:
        """Drop the token that ended the completion, and padding.

        Keep a closing tag that `stop` asked for: a reward looks for it.
        """
        token_ids = list(completion.token_ids)
        # vLLM reports the stop string, the id of the stop token, or None for the end of sequence.
        ended_by_token = completion.finish_reason == "stop" and not isinstance(completion.stop_reason, str)
        if ended_by_token and completion.stop_reason not in kept:
            token_ids = token_ids[:-1]
        while token_ids and token_ids[-1] == self._pad_token_id:
            token_ids.pop()
        return token_ids


def special_tokens(tokenizer: Any) -> dict[str, int]:
    """Return the special tokens by their text: those with a role, and added ones that are marked as special."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    found = {token.content: token_id for token_id, token in added.items() if token.special}
    return found | dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
