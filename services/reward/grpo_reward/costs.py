"""What a score of each reward costs, learned while scoring, and how many samples make a chunk of a good size."""

import math
from collections.abc import Sequence

from grpo_proto import RewardSpec

CHUNK_S = 0.016
"""How long a chunk should take: long against the cost of handing it over, short against a person's patience."""
FIRST_GUESS_S = 0.004
"""Cost of a score of which nothing is known yet."""
LEAST_S = 1e-7
"""No score is cheaper, whatever a clock says."""
CHEAP_S = 0.0005
"""Rewards cheaper than this share chunks, so that a completion travels once for all of them."""


class Costs:
    """Moving averages, in seconds for one sample."""

    def __init__(self) -> None:
        self._cost_s: dict[str, float] = {}

    def of(self, specs: Sequence[RewardSpec]) -> float:
        """Seconds for one sample with all of `specs`."""
        return sum(self._cost_s.get(spec.name, FIRST_GUESS_S) for spec in specs)

    def is_cheap(self, spec: RewardSpec) -> bool:
        return self._cost_s.get(spec.name, math.inf) < CHEAP_S

    def learn(self, reward: str, cost_s: float) -> None:
        """`cost_s`: what a sample took lately, in seconds."""
        self._cost_s[reward] = 0.7 * self._cost_s.get(reward, cost_s) + 0.3 * cost_s

    def chunk_samples(self, specs: Sequence[RewardSpec]) -> int:
        """How many samples take about CHUNK_S; at least one."""
        return max(1, int(CHUNK_S / max(self.of(specs), LEAST_S)))
