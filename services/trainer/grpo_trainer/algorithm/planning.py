"""Planning: which rank and which micro-batch computes what of an optimizer update.

Sequences with shared prefixes are planned in the order of their token ids. There those that begin alike are neighbours,
every rank and every micro-batch is a run of neighbours, and at each cut one prefix at most is computed twice. Padded
rows are planned by length.

The unit is the episode: a ratio of an episode reads the tokens of all its sequences. A plan is a function of the batch.
"""

from collections.abc import Sequence
from itertools import groupby

from .prefixes import Growing, PrefixSharing, sort_key
from .sequences import TrainingSequence

# A micro-batch that is already this full takes no row shorter than this share of its longest: padding costs as much as
# tokens do.
MIN_FILL, MIN_ROW_SHARE = 0.25, 0.75

Units = list[list[int]]
"""The numbers of the sequences of each episode."""
Plan = list[list[list[list[int]]]]
"""Sequence numbers by update, rank and micro-batch."""


def plan_updates(
    sequences: Sequence[TrainingSequence],
    *,
    world_size: int,
    tokens_per_micro_batch: int,
    prefixes: PrefixSharing | None = None,
    num_updates: int | None = None,
) -> Plan:
    """Who computes what: sequence numbers by update, rank and micro-batch; `prefixes` None for padded rows.

    An episode larger than the budget has a micro-batch of its own. Every rank has the same number of micro-batches; a
    rank that needs fewer first halves its largest ones and then gets empty ones. `num_updates` defaults to those that
    `sequences` are in; an update of which none is left has one empty micro-batch on every rank, because its optimizer
    steps all the same.
    """
    units = [list(numbers) for _, numbers in groupby(range(len(sequences)), key=lambda i: sequences[i].episode)]
    if num_updates is None:
        num_updates = count_updates(sequences)
    plan: Plan = []
    for update in range(num_updates):
        in_update = [unit for unit in units if sequences[unit[0]].update == update]
        if prefixes is None:
            shares = share_out_by_length(sequences, in_update, world_size)
            filled = [fill_rows(sequences, units_of_rank, tokens_per_micro_batch) for units_of_rank in shares]
        else:
            neighbours = Neighbours(sequences, prefixes)
            shares = neighbours.share_out(in_update, world_size)
            filled = [neighbours.fill(units_of_rank, tokens_per_micro_batch) for units_of_rank in shares]
        count = max(1, *(len(micro_batches) for micro_batches in filled))
        spread = [_spread(micro_batches, count) for micro_batches in filled]
        plan.append([[[i for unit in units for i in unit] for units in micro_batches] for micro_batches in spread])
    return plan


def count_updates(sequences: Sequence[TrainingSequence]) -> int:
    return max((sequence.update for sequence in sequences), default=-1) + 1


def token_counts(computed: Sequence[TrainingSequence], num_tokens: int, *, shares: bool) -> dict[str, float]:
    """Metrics of a batch: `tokens/computed`, the tokens of a pass over it, padding included; with shared prefixes
    `tokens/shared_ratio`, of the tokens that its sequences need the share that was computed for another one."""
    counts: dict[str, float] = {"tokens/computed": num_tokens}
    if shares and computed:
        counts["tokens/shared_ratio"] = 1.0 - num_tokens / sum(len(sequence.needed_ids) for sequence in computed)
    return counts


class Neighbours:
    """Episodes in the order of the token ids of their first sequence, cut into runs."""

    def __init__(self, sequences: Sequence[TrainingSequence], prefixes: PrefixSharing):
        self._sequences, self._prefixes = sequences, prefixes
        self._keys: dict[int, bytes] = {}

    def in_order(self, units: Units) -> Units:
        return sorted(units, key=lambda unit: (self._key(unit[0]), unit[0]))

    def share_out(self, units: Units, world_size: int) -> list[Units]:
        """Give each rank a run with an equal share of the unique tokens."""
        left = self.in_order(units)
        shares: list[Units] = []
        # What a unit brings beyond those before it; the first of a rank brings its whole prefix once more.
        brought = self._brought(left) if world_size > 1 else []
        for ranks_left in range(world_size, 1, -1):
            grown, taken = Growing(self._prefixes), 0
            share = sum(brought) / ranks_left
            for unit in left:
                before = grown.num_unique
                self._add(grown, unit)
                if taken == 0:
                    share += (grown.num_unique - brought[0]) / ranks_left
                if taken and (before + grown.num_unique) / 2 > share:
                    break
                taken += 1
            shares.append(left[:taken])
            left, brought = left[taken:], brought[taken:]
        return [*shares, left]

    def fill(self, ordered: Units, budget: int) -> list[Units]:
        """Put neighbours together while what they keep is at most `budget` tokens."""
        filled: list[Units] = []
        grown = Growing(self._prefixes)
        for unit in ordered:
            self._add(grown, unit)
            if not filled or grown.kept > budget:
                filled.append([])
                grown = Growing(self._prefixes)
                self._add(grown, unit)
            filled[-1].append(unit)
        return filled

    def _brought(self, units: Units) -> list[int]:
        grown, found = Growing(self._prefixes), []
        for unit in units:
            before = grown.num_unique
            self._add(grown, unit)
            found.append(grown.num_unique - before)
        return found

    def _add(self, grown: Growing, unit: list[int]) -> None:
        for i in unit:
            grown.add(self._sequences[i].needed_ids, self._key(i), num_trained=self._sequences[i].num_trained)

    def _key(self, number: int) -> bytes:
        if number not in self._keys:
            self._keys[number] = sort_key(self._sequences[number].needed_ids)
        return self._keys[number]


def share_out_by_length(sequences: Sequence[TrainingSequence], units: Units, world_size: int) -> list[Units]:
    """Give each rank its episodes: longest first, always to the rank with the fewest tokens."""
    shares: list[Units] = [[] for _ in range(world_size)]
    loads = [0] * world_size
    for unit in sorted(units, key=lambda unit: (-_longest(sequences, unit), unit[0])):
        lightest = loads.index(min(loads))
        shares[lightest].append(unit)
        loads[lightest] += sum(sequences[i].num_tokens for i in unit)
    return shares


def fill_rows(sequences: Sequence[TrainingSequence], longest_first: Units, budget: int) -> list[Units]:
    """Put episodes into micro-batches of padded rows, rows × longest row ≤ `budget` tokens, in order while the padding
    stays small (`MIN_ROW_SHARE`)."""
    filled: list[Units] = []
    for unit in longest_first:
        rows = sum(map(len, filled[-1])) if filled else 0
        longest = _longest(sequences, filled[-1][0]) if filled else 0
        full = not filled or (rows + len(unit)) * longest > budget
        wasteful = _longest(sequences, unit) < MIN_ROW_SHARE * longest
        if full or (wasteful and rows * longest >= MIN_FILL * budget):
            filled.append([unit])
        else:
            filled[-1].append(unit)
    return filled


def _longest(sequences: Sequence[TrainingSequence], unit: list[int]) -> int:
    return max(sequences[i].num_tokens for i in unit)


def _spread(micro_batches: list[Units], count: int) -> list[Units]:
    """The same episodes in `count` micro-batches."""
    spread = list(micro_batches)
    while len(spread) < count:
        largest = max(range(len(spread)), key=lambda k: len(spread[k]), default=None)
        if largest is None or len(spread[largest]) < 2:
            spread.append([])
            continue
        units = spread[largest]
        half = len(units) // 2
        spread[largest : largest + 1] = [units[:half], units[half:]]
    return spread
