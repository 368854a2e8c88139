"""What a check is: a small function that returns figures, their bounds, and what it needs of the machine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from .bounds import BOUNDS, Bound

Figures = Mapping[str, float | None]
"""By name, with its unit. None: not measured here, which is never within a bound."""


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
    not_on_a_cpu: str = ""
    """Why there is no trial of it."""


def check(
    *, needs: Needs | None = None, timeout_s: float = 600.0, light: bool = True, not_on_a_cpu: str = ""
) -> Callable[[Callable[[Place], Figures]], Check]:
    """Make a check of a function: its name is the check's, the first line of its docstring the title.

    Its bounds are those of its name in `bounds.py`.
    """

    def made(function: Callable[[Place], Figures]) -> Check:
        title = (function.__doc__ or "").splitlines()[0].rstrip(".")
        name = function.__name__
        return Check(name, title, function, BOUNDS[name], needs or Needs(), timeout_s, light, not_on_a_cpu)

    return made
