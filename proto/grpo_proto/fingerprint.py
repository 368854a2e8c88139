"""Short digests of a tokenizer and of a chat template, by which two services check that theirs are equal."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def tokenizer_fingerprint(vocabulary: Mapping[str, int], *, eos_token_id: int | None) -> str:
    """SHA-256 over (token, id) pairs and the end-of-sequence id; 16 hex digits.

    With equal fingerprints every token id means the same to both sides, as token-in, token-out requires.
    """
    return _digest([sorted(vocabulary.items()), eos_token_id])


def vocabulary_fingerprint(vocabulary: Mapping[str, int]) -> str:
    """SHA-256 over (token, id) pairs, added tokens included; 16 hex digits.

    With equal fingerprints every token id stands for the same text. Models of one family share it, though a base model
    and a chat model of it end their texts with different tokens. Left out on purpose: the merges, which decide how text
    is cut into tokens, and play no part where token ids travel.
    """
    return _digest(sorted(vocabulary.items()))


def _digest(content: Any) -> str:
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def chat_template_fingerprint(template: str | None) -> str | None:
    """SHA-256 of the template's text, 16 hex digits; None when there is no template. Jinja drops a final line break."""
    return None if template is None else hashlib.sha256(template.removesuffix("\n").encode()).hexdigest()[:16]
