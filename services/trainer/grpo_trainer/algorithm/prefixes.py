"""Shared prefixes: the sequences of a micro-batch as one row in which every token stands once.

In the order of their token ids, sequences that begin alike are neighbours. Each owns what it does not share with the
one before it; its *path*, the shared tokens and its own, is all that its hidden states depend on. So the row is the
owned tokens of all sequences, and all paths through a token read the same hidden state. Prompts of a group, equal
beginnings of completions, equal completions, turns, forks and templates are shared alike, and nothing has to know what
any of them is. What predicts nothing that is trained is left out before (`TrainingSequence.needed_ids`).

    in order   p p p a b      owned  p p p a b      path of the third   p p p d e
               p p p a c             c              its queries         d e
               p p p d e             d e            its keys            the path: causal, aligned at the end
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

TOKEN_IN_SCORES = 512
"""Attention scores that cost what a token costs in everything else of a model. A layer of width H spends about 24 H² on
a token and 4 H on a score, 6 H scores a token; small models, in which masks weigh most, set the number."""
KEY_IN_SCORES = 64
"""Attention scores that cost what it costs to gather the key and the value of a token and to add up their gradients."""
MIN_SHARE = 0.75
"""Paths are computed in one call of attention while none has less than this share of the longest's tokens."""
SMALL_CALL = 1 << 18
"""Scores of a call below which padded queries cost less than another call."""
MIN_SHARE_OF_KEYS = 0.5
"""The same for the keys of small calls: they are kept until the backward pass."""


@dataclass(frozen=True)
class PrefixSharing:
    """That prefixes are shared, and what a micro-batch keeps for it until the backward pass: in tokens of the row, what
    a token keeps being 1."""

    key: float = 0.0
    """For a token of a path: its key and value, gathered. Sequences of equal length that share nothing need no copy."""
    score: float = 0.0
    """For an entry of the mask."""
    trained: float = 0.0
    """For a trained token beyond the tokens of the row: its hidden state at the output head."""


def shared_length(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """Return how many tokens `a` and `b` have in common from the first on."""
    size = min(len(a), len(b))
    differs = a[:size] != b[:size]
    first = int(differs.argmax()) if size else 0
    return first if size and differs[first] else size


def worth_sharing(shared: int, length: int) -> int:
    """Return `shared`, the tokens that a sequence of `length` has in common with the one before, or 0 if sharing them
    costs more than it saves.

    Alone a sequence is computed by causal attention without a mask, which skips half of length² scores. With a shared
    part it computes all scores of its own tokens, and its keys are gathered. A BOS, or a few tokens of a template in
    common, are not worth that.
    """
    more_scores = (length - shared) * length - length * length / 2 + KEY_IN_SCORES * length
    return shared if shared * TOKEN_IN_SCORES >= more_scores else 0


def sort_key(token_ids_L: NDArray[np.int64]) -> bytes:
    """Return bytes that sort as the token ids do: big-endian ones."""
    return token_ids_L.astype(">i8").tobytes()


@dataclass(frozen=True)
class Forest:
    """Q sequences in one row, all lists in the order in which the sequences were given."""

    own_Q: list[int]
    """Tokens that only this sequence brings into the row; 0 for the second of two equal ones."""
    starts_Q: list[int]
    """The first of these in the row."""
    paths_Q: list[NDArray[np.int64]]
    """Where in the row the L tokens of the sequence stand."""
    blocks: list[list[int]]
    """The sequences that attention computes in one call; the row has their own tokens in this order."""
    num_unique: int
    """Length of the row."""

    def shared(self, number: int) -> int:
        return len(self.paths_Q[number]) - self.own_Q[number]


def grow(tokens_Q: Sequence[NDArray[np.int64]]) -> Forest:
    """Put sequences, given by their token ids, into one row."""
    keys = [sort_key(token_ids_L) for token_ids_L in tokens_Q]
    order = sorted(range(len(tokens_Q)), key=keys.__getitem__)
    shared_Q = [0] * len(tokens_Q)
    for before, number in pairwise(order):
        shared = shared_length(tokens_Q[before], tokens_Q[number])
        shared_Q[number] = worth_sharing(shared, len(tokens_Q[number]))
    own_Q = [len(token_ids_L) - shared for token_ids_L, shared in zip(tokens_Q, shared_Q, strict=True)]
    blocks = _alike([(own, own + shared) for own, shared in zip(own_Q, shared_Q, strict=True)])
    starts_Q, end = [0] * len(tokens_Q), 0
    for number in (number for block in blocks for number in block):
        starts_Q[number] = end
        end += own_Q[number]
    paths: dict[int, NDArray[np.int64]] = {}
    before_it = np.empty(0, np.int64)
    for number in order:
        own = np.arange(starts_Q[number], starts_Q[number] + own_Q[number])
        paths[number] = before_it = np.concatenate([before_it[: shared_Q[number]], own])
    return Forest(own_Q, starts_Q, [paths[number] for number in range(len(tokens_Q))], blocks, end)


def _alike(sizes: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The numbers of sequences of like size together, by (own, all) tokens; those without a shared part by themselves.

    Sequences without tokens of their own are in none.
    """
    blocks: list[list[int]] = []
    shortest = longest = 0
    for number in sorted(range(len(sizes)), key=lambda i: (sizes[i][0] != sizes[i][1], -sizes[i][0], -sizes[i][1])):
        own, length = sizes[number]
        if own == 0:
            continue
        if blocks:
            first_own, first_length = sizes[blocks[-1][0]]
            least, most = min(shortest, length), max(longest, length)
            same_kind = (first_own == first_length) == (own == length)
            near = own >= MIN_SHARE * first_own and least >= MIN_SHARE * most
            small = (len(blocks[-1]) + 1) * first_own * most <= SMALL_CALL and least >= MIN_SHARE_OF_KEYS * most
            if same_kind and (near or small):
                blocks[-1].append(number)
                shortest, longest = least, most
                continue
        blocks.append([number])
        shortest = longest = length
    return blocks


@dataclass
class Growing:
    """What a growing set of sequences keeps, without making its row."""

    sharing: PrefixSharing
    num_unique: int = 0
    _keys: list[bytes] = field(default_factory=list)
    _tokens: list[NDArray[np.int64]] = field(default_factory=list)
    _num_keys: int = 0
    _plain: Counter[int] = field(default_factory=Counter)
    """Lengths of the sequences that share nothing with the one before them."""
    _num_scores: int = 0
    _num_trained: int = 0

    @property
    def kept(self) -> float:
        """In tokens: what `tokens_per_micro_batch` bounds."""
        sharing = self.sharing
        plain = sum(length * count for length, count in self._plain.items()) if len(self._plain) > 1 else 0
        keys = (self._num_keys + plain) * sharing.key
        trained = max(self._num_trained - self.num_unique, 0) * sharing.trained
        return self.num_unique + keys + self._num_scores * sharing.score + trained

    def add(self, token_ids_L: NDArray[np.int64], key: bytes, *, num_trained: int = 0) -> None:
        """Take in a sequence, `key` its `sort_key`."""
        at = bisect_left(self._keys, key)
        before, length = (self._tokens[at - 1] if at else None), len(token_ids_L)
        with_before = 0 if before is None else shared_length(before, token_ids_L)
        self._count(with_before, length, 1)
        if at < len(self._tokens):
            after = self._tokens[at]
            with_after = shared_length(token_ids_L, after)
            self._count(min(with_before, with_after), len(after), -1)
            self._count(with_after, len(after), 1)
        self._keys.insert(at, key)
        self._tokens.insert(at, token_ids_L)
        self._num_trained += num_trained

    def _count(self, shared: int, length: int, sign: int) -> None:
        """Count, or with -1 take back, a sequence that has `shared` tokens in common with the one before it."""
        shared = worth_sharing(shared, length)
        own = length - shared
        self.num_unique += sign * own
        if not shared:
            self._plain[length] += sign
            if not self._plain[length]:
                del self._plain[length]
        elif own:
            self._num_keys += sign * length
            self._num_scores += sign * own * length
