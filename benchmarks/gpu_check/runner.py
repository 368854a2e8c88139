"""Run checks one after the other, each in a process of its own: a CUDA error or a lack of memory ends only one."""

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from .box import Box
from .check import Check, Figures, Place

ROOT = Path(__file__).parents[2]
STOP_TIMEOUT_S = 90.0
Outcome = Literal["right", "outside its bound", "failed", "left out"]
Measure = Callable[[Check], Figures]


class CheckFailedError(Exception):
    """The process of a check ended without figures."""


@dataclass(frozen=True)
class Result:
    check: Check
    outcome: Outcome
    figures: Figures = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0


def run_checks(checks: Iterable[Check], box: Box, measure: Measure, *, trial: bool) -> Iterable[Result]:
    """Yield each check's result once it is there. A `trial` needs no GPU, and ignores bounds of speed and memory."""
    for check in checks:
        lacking = (check.not_on_a_cpu or box.lacks_packages(check.needs)) if trial else box.lacks(check.needs)
        if lacking:
            yield Result(check, "left out", reason=lacking)
            continue
        started = time.monotonic()
        try:
            figures = measure(check)
        except CheckFailedError as error:
            yield Result(check, "failed", reason=str(error), seconds=time.monotonic() - started)
            continue
        outside = [name for name in held(check, trial=trial) if not check.bounds[name].holds(figures.get(name))]
        yield Result(
            check,
            "outside its bound" if outside else "right",
            figures,
            reason=", ".join(outside),
            seconds=time.monotonic() - started,
        )


def held(check: Check, *, trial: bool) -> list[str]:
    """Return the names of the figures whose bound is held."""
    return [name for name, bound in check.bounds.items() if bound.in_trials or not trial]


def in_this_process(check: Check, device: str, *, tiny: bool) -> Figures:
    """Raises CheckFailedError with the traceback's last line when the check raises."""
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        try:
            return check.run(Place(torch.device(device), tiny, Path(folder)))
        except Exception as error:
            traceback.print_exc()
            raise CheckFailedError(
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            ) from error


def in_a_child(check: Check, device: str, *, tiny: bool) -> Figures:
    """Raises CheckFailedError when the child dies, prints no figures, or passes the check's deadline."""
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        answer = Path(folder, "figures.json")
        command = [sys.executable, "-m", "benchmarks.gpu_check", "--device", device, "--child", check.name, str(answer)]
        if tiny:
            command.append("--tiny")
        with subprocess.Popen(command, cwd=ROOT, env=child_environment(device), stdout=sys.stderr) as child:
            try:
                child.wait(check.timeout_s)
            except subprocess.TimeoutExpired as error:
                raise CheckFailedError(f"took longer than {check.timeout_s:g} s") from error
            finally:
                _stop(child)
        if not answer.exists():
            raise CheckFailedError(f"ended with status {child.returncode} and no figures; its output is above")
        found = json.loads(answer.read_text())
    if "error" in found:
        raise CheckFailedError(found["error"])
    figures: Figures = found["figures"]
    return figures


def _stop(child: "subprocess.Popen[bytes]") -> None:
    """Let a child that still runs stop the services that it started, then kill it."""
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()


def child_environment(device: str) -> dict[str, str]:
    """Return the environment in which the trainer picks `device`: it takes a GPU where it sees one."""
    return dict(os.environ) | ({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {})
