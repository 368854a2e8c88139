"""The weight of the entropy bonus: fixed, or moved after every update towards an entropy."""

import math
from collections.abc import Mapping
from typing import Any

from ..config.algorithm import AlgorithmConfig


class EntropyCoefficient:
    """`entropy_coef`; with `use_adaptive_entropy` it starts there and moves by `entropy_coef_delta` after every update:
    up after an entropy of `entropy_target` or below, else down, between `entropy_coef_min` and `entropy_coef_max`.

    An update applies the coefficient only if the entropy of the update before was at the target or below; the first
    update of a run applies none. Skywork-OR1, arXiv 2505.22312; rules and names are TRL's.
    """

    def __init__(self, algorithm: AlgorithmConfig):
        self._settings = algorithm
        self._value = algorithm.entropy_coef
        self._last_entropy: float | None = None

    @property
    def applied(self) -> float:
        """The weight of the bonus in the next update."""
        return self._value if not self._settings.use_adaptive_entropy or self._is_low(self._last_entropy) else 0.0

    def move(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Move after an update with these metrics over all ranks. Returns the metric of an adaptive coefficient.

        It reads the entropy of the tokens that have a bonus, and stays where it is when that is not finite.
        """
        settings = self._settings
        if not settings.use_adaptive_entropy:
            return {}
        entropy = metrics.get("entropy_mask/entropy" if settings.masks_low_entropy else "entropy", math.nan)
        if math.isfinite(entropy):
            step = settings.entropy_coef_delta if self._is_low(entropy) else -settings.entropy_coef_delta
            self._value = min(max(self._value + step, settings.entropy_coef_min), settings.entropy_coef_max)
            self._last_entropy = entropy
        return {"entropy_coef": self._value}

    @property
    def state(self) -> dict[str, float | None]:
        """What a checkpoint keeps: nothing of a fixed coefficient."""
        if not self._settings.use_adaptive_entropy:
            return {}
        return {"entropy_coef": self._value, "last_entropy": self._last_entropy}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from `state`; from the start if it holds none, as of a run whose coefficient was fixed until now."""
        if self._settings.use_adaptive_entropy:
            self._value = saved.get("entropy_coef", self._settings.entropy_coef)
            self._last_entropy = saved.get("last_entropy")

    def _is_low(self, entropy: float | None) -> bool:
        target = self._settings.entropy_target
        return entropy is not None and target is not None and entropy <= target
