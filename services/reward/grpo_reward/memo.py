"""Scores that are known already: the same code with the same params on the same sample gives the same score.

Off by default, because only the operator knows whether the rewards are functions of what they read: a judge is not.
It is a cache and nothing else: a replica without it gives the same answers, later.
"""

import hashlib
from collections.abc import Mapping

from cachetools import LRUCache
from pydantic_core import PydanticSerializationError, to_json

from grpo_proto import RewardScore

from .executors.base import Chunk, LoadedReward


class Memo:
    """The last `size` scores, by a digest of everything they depend on. Time-outs and errors are never remembered."""

    def __init__(self, size: int):
        self._scores: LRUCache[bytes, RewardScore] = LRUCache(size)

    def recall(self, chunk: Chunk, rewards: Mapping[str, LoadedReward]) -> list[bytes]:
        """Fill in what is known. Returns the key of every item, for `remember`; none for a batch reward."""
        if chunk.batch:
            return []
        keys = []
        for item in range(len(chunk.scores)):
            position, reward = divmod(item, len(chunk.rewards))
            spec = chunk.rewards[reward]
            loaded = rewards[spec.name]
            sample = chunk.samples[position]
            read = {
                "code": loaded.description.code_hash,
                "reward": spec.name,
                "params": spec.params,
                "step": chunk.step if loaded.takes_step else None,
                "completion": sample["completion"],
                "columns": {name: sample["columns"][name] for name in loaded.columns if name in sample["columns"]},
                "fields": {name: sample[name] for name in loaded.fields},
            }
            try:
                key = hashlib.blake2b(to_json(read), digest_size=16).digest()
            except PydanticSerializationError:  # text that is no valid Unicode
                key = b""
            keys.append(key)
            chunk.scores[item] = self._scores.get(key)
        return keys

    def remember(self, chunk: Chunk, keys: list[bytes]) -> None:
        for key, score in zip(keys, chunk.scores, strict=False):
            if key and score is not None and score.status in ("ok", "unscorable"):
                self._scores[key] = score
