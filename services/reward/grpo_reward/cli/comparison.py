"""The scores that a file already has against new ones. Null is never 0: a pair counts when both sides have a score."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from .output import shortened
from .rows import Row
from .statistics import advantages, is_constant, mean, spearman

EQUAL_WITHIN = 1e-9

Scores = Mapping[str, Sequence[float | None]]
"""What is compared (a reward, or `total`) → one score per row."""


def old_scores(rows: Sequence[Row], new: Scores) -> dict[str, list[float | None]]:
    """What the file says about whatever is in `new`; left out when no line says anything."""
    old: dict[str, list[float | None]] = {}
    for name in new:
        if name == "total":
            if any(row.has_total for row in rows):
                old[name] = [row.total for row in rows]
        elif any(name in row.scores for row in rows):
            old[name] = [row.scores.get(name) for row in rows]
    return old


def agreement(old: Sequence[float | None], new: Sequence[float | None]) -> dict[str, Any]:
    """How far two scorings agree: counts, `equal` as a share of the pairs, Spearman's rank correlation."""
    pairs = [(a, b) for a, b in zip(old, new, strict=True) if a is not None and b is not None]
    differences = [abs(a - b) for a, b in pairs]
    return {
        "pairs": len(pairs),
        "equal": sum(difference <= EQUAL_WITHIN for difference in differences) / len(pairs) if pairs else None,
        "mean_difference": mean(differences),
        "spearman": spearman([a for a, _ in pairs], [b for _, b in pairs]),
        "lost": sum(a is not None and b is None for a, b in zip(old, new, strict=True)),
        "gained": sum(a is None and b is not None for a, b in zip(old, new, strict=True)),
        "both_null": sum(a is None and b is None for a, b in zip(old, new, strict=True)),
    }


def most_different(rows: Sequence[Row], old: Scores, new: Scores, top: int) -> list[dict[str, Any]]:
    """One entry per sample, for what differs most in it; first those that lost or gained a score."""
    found = []
    for position, row in enumerate(rows):
        changes = [
            (float("inf") if (a is None) != (b is None) else abs((a or 0.0) - (b or 0.0)), name, a, b)
            for name in old
            for a, b in [(old[name][position], new[name][position])]
            # A total that differs is told by the reward it differs by, when that one is known.
            if not (name == "total" and any(other in row.scores for other in new))
        ]
        difference, name, a, b = max(changes, key=lambda change: change[0], default=(0.0, "", None, None))
        if difference > EQUAL_WITHIN:
            found.append((difference, row, name, a, b))
    found.sort(key=lambda entry: -entry[0])
    return [
        {
            "id": row.name,
            "where": row.where,
            "reward": name,
            "old": a,
            "new": b,
            "completion": shortened(row.sample.completion),
        }
        for _, row, name, a, b in found[:top]
    ]


def advantage_changes(
    rows: Sequence[Row], old: Sequence[float | None], new: Sequence[float | None]
) -> dict[str, Any] | None:
    """What other totals would do to the advantages of GRPO; None when there is nothing to compare.

    Over the groups with two or more totals on each side, and in them over the samples with a total on both.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for position, row in enumerate(rows):
        if row.group is not None:
            groups[row.group].append(position)
    members = [
        positions
        for positions in groups.values()
        if all(sum(scores[position] is not None for position in positions) > 1 for scores in (old, new))
    ]
    if not members:
        return None
    changes: list[float] = []
    flipped = became = stopped = 0
    for positions in members:
        before, after = [old[position] for position in positions], [new[position] for position in positions]
        for a, b in zip(advantages(before), advantages(after), strict=True):
            if a is not None and b is not None:
                changes.append(abs(a - b))
                flipped += a * b < 0
        became += is_constant(after) and not is_constant(before)
        stopped += is_constant(before) and not is_constant(after)
    return {
        "groups": len(members),
        "samples": len(changes),
        "mean_absolute_change": mean(changes),
        "sign_changes": flipped / len(changes) if changes else None,
        "became_constant": became / len(members),
        "stopped_being_constant": stopped / len(members),
    }
