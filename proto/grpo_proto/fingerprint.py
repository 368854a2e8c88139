"""Short digests of a tokenizer and of a chat template, by which two services check that theirs are equal."""

import hashlib
import json
from collections.abc import Mapping


def tokenizer_fingerprint(vocabulary: Mapping[str, int], *, eos_token_id: int | None) -> str:
    """SHA-256 over (token, id) pairs and the end-of-sequence id; 16 hex digits.

    With equal fingerprints every token id means the same to both sides, as token-in, token-out requires.
    """
    content = json.dumps([sorted(vocabulary.items()), eos_token_id], ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def chat_template_fingerprint(template: str | None) -> str | None:
    """SHA-256 of the template's text, 16 hex digits; None when there is no template."""
    return None if template is None else hashlib.sha256(template.encode()).hexdigest()[:16]
