"""What a check is: a small function that returns figures, their bounds, and what it needs of the machine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

Figures = Mapping[str, float | None]
"""By name, with its unit. None: not measured here, which is never within a bound."""


@dataclass(frozen=True)
class Bound:
    """The limit of a figure. What depends on the speed or the memory of a GPU has `in_trials` False."""

    kind: Literal["at most", "at least"]
    limit: float
    in_trials: bool = True

    def holds(self, value: float | None) -> bool:
        """Whether `value` is within the bound. NaN and None never are."""
        if value is None:
            return False
        return value <= self.limit if self.kind == "at most" else value >= self.limit


@dataclass(frozen=True)
class Needs:
    """What a check needs of the machine. `packages` are import names; a build for CPUs alone does not count."""

    gpus: int = 1
    memory_gib: float = 1.0
    """Of each GPU."""
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where a check runs."""

    device: torch.device
    tiny: bool
    """Take shapes that a CPU computes in a second: a trial of the code, whose times and memory mean nothing."""
    folder: Path
    """An empty folder, deleted afterwards."""


@dataclass(frozen=True)
class Check:
    name: str
    title: str
    run: Callable[[Place], Figures]
    bounds: Mapping[str, Bound]
    needs: Needs = field(default_factory=Needs)
    timeout_s: float = 600.0
    light: bool = True
    """Whether its trial takes no seconds: no engine, no process."""


def check(
    bounds: Mapping[str, Bound], *, needs: Needs | None = None, timeout_s: float = 600.0, light: bool = True
) -> Callable[[Callable[[Place], Figures]], Check]:
    """Make a check of a function: its name is the check's, the first line of its docstring the title."""

    def made(function: Callable[[Place], Figures]) -> Check:
        title = (function.__doc__ or "").splitlines()[0].rstrip(".")
        return Check(function.__name__, title, function, bounds, needs or Needs(), timeout_s, light)

    return made


def at_most(limit: float, *, in_trials: bool = True) -> Bound:
    return Bound("at most", limit, in_trials)


def at_least(limit: float, *, in_trials: bool = True) -> Bound:
    return Bound("at least", limit, in_trials)
