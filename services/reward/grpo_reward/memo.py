"""Scores that are known already: the same code with the same params on the same sample gives the same score.

Off by default, because only the operator knows whether the rewards are functions of what they read: a judge is not.
It is a cache and nothing else: a replica without it gives the same answers, later.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from cachetools import LRUCache
from pydantic_core import PydanticSerializationError, to_json

from grpo_proto import RewardScore, RewardSpec

from .executors.base import Chunk, LoadedReward


class Memo:
    """The last `size` scores, by a digest of everything they depend on. Time-outs and errors are never remembered."""

    def __init__(self, size: int):
        self._scores: LRUCache[bytes, RewardScore] = LRUCache(size)

    def recall(self, chunk: Chunk, rewards: Mapping[str, LoadedReward]) -> list[bytes]:
        """Fill in what is known. Returns the key of every item, for `remember`; none for a batch reward."""
        if chunk.batch:
            return []
        if chunk.pace.reward_keys is None:  # once for a request: params may be long
            chunk.pace.reward_keys = [self._reward_key(spec, chunk, rewards[spec.name]) for spec in chunk.rewards]
        keys = []
        for sample in chunk.samples:
            parts: dict[tuple[str, str], bytes] = {}
            for spec, key in zip(chunk.rewards, chunk.pace.reward_keys, strict=True):
                keys.append(key and self._sample_key(key, rewards[spec.name], sample, parts))
        chunk.scores = [self._scores.get(key) for key in keys]
        return keys

    @staticmethod
    def _reward_key(spec: RewardSpec, chunk: Chunk, loaded: LoadedReward) -> bytes:
        step = chunk.step if loaded.takes_step else None
        return _digest([loaded.description.code_hash, spec.name, spec.params, step])

    @staticmethod
    def _sample_key(
        reward_key: bytes, loaded: LoadedReward, sample: Mapping[str, Any], parts: dict[tuple[str, str], bytes]
    ) -> bytes:
        """Digest of what the reward reads; empty when a part has none. `parts`: those so far, shared by rewards."""
        columns = sample["columns"]
        read = [("", "completion", sample["completion"])]
        read += [("column", name, columns[name]) for name in loaded.columns if name in columns]
        read += [("field", name, sample[name]) for name in loaded.fields]
        key = hashlib.blake2b(reward_key, digest_size=16)
        for kind, name, value in read:
            if (kind, name) not in parts:
                parts[kind, name] = _digest([kind, name, value])
            if not parts[kind, name]:
                return b""
            key.update(parts[kind, name])
        return key.digest()

    def remember(self, chunk: Chunk, keys: list[bytes]) -> None:
        for key, score in zip(keys, chunk.scores, strict=False):
            if key and score is not None and score.status in ("ok", "unscorable"):
                self._scores[key] = score


def _digest(value: Any) -> bytes:
    """Digest of `value`; empty for text that is no valid Unicode: nothing is remembered of it."""
    try:
        return hashlib.blake2b(to_json(value), digest_size=16).digest()
    except PydanticSerializationError:
        return b""
