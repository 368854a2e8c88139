"""Start the launcher, give it a program and its tests, collect what came out."""

import base64
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

LAUNCHER = Path(__file__).with_name("launcher.py")
SANDBOX_VARIABLE = "GRPO_REWARD_CODE_SANDBOX"
START_S = 10.0
"""How long the launcher may take beside the tests, on a busy machine."""


class SandboxError(Exception):
    """The sandbox itself did not work: this says nothing about the program."""


@dataclass(frozen=True)
class Run:
    """How one test ended. `error` has raised, `death` is a crash or a kill by a limit, `output` was too much of it."""

    ended: Literal["done", "error", "timeout", "output", "death"]
    stdout: str
    detail: str | None
    values: list[str] | None
    """Values of a test's expressions as literals of Python, up to the one that raised; `<…>` for what has none."""


@dataclass(frozen=True)
class Barriers:
    """What of the sandbox this machine cannot do, and what of it therefore stands open to a program; with reasons."""

    missing: list[str]
    open: list[str]
    """Of files, network and processes those that no other barrier closes."""


def barriers_here() -> Barriers:
    """Raises SandboxError."""
    nothing = {"source": "", "tests": [], "test_timeout_s": 1.0, "total_timeout_s": 1.0}
    return _ask({**nothing, "memory_bytes": 1 << 30, "max_output_bytes": 1}, START_S)[0]


def may_be_open() -> bool:
    """Whether the operator has given the sandbox up."""
    return os.environ.get(SANDBOX_VARIABLE) == "open"


def refusal_of(barriers: Barriers) -> str | None:
    """Why no program is run here, and what to change; None when it is."""
    if not barriers.open or may_be_open():
        return None
    return (
        f"the sandbox leaves open to programs here: {', '.join(barriers.open)}; "
        "mend that, or give it up with --code-sandbox open"
    )


def run_tests(
    source: str,
    tests: Sequence[Mapping[str, str | list[str]]],
    *,
    test_timeout_s: float,
    total_timeout_s: float,
    memory_bytes: int,
    max_output_bytes: int = 1 << 20,
) -> list[Run]:
    """Run `source` once for each test: `{"stdin"}`, `{"code"}` or `{"expressions"}`, see launcher.py.

    What has not begun within `total_timeout_s` has ended by `timeout`, too. Raises SandboxError when there is
    no sandbox here, or when it broke.
    """
    request = {
        "source": source,
        "tests": [dict(test) for test in tests],
        "test_timeout_s": test_timeout_s,
        "total_timeout_s": total_timeout_s,
        "memory_bytes": memory_bytes,
        "max_output_bytes": max_output_bytes,
    }
    barriers, runs = _ask(request, START_S + total_timeout_s)
    if len(runs) != len(tests):
        reason = refusal_of(barriers) or "the launcher ended early"
        raise SandboxError(f"the sandbox ran {len(runs)} of {len(tests)} tests: {reason}")
    return runs


def _ask(request: Mapping[str, Any], timeout_s: float) -> tuple[Barriers, list[Run]]:
    try:
        answer = subprocess.run(  # noqa: S603 - our own launcher
            [sys.executable, "-I", "-S", str(LAUNCHER)],
            input=json.dumps({**request, "may_be_open": may_be_open()}).encode(),
            capture_output=True,
            # glibc would reserve 64 MiB of addresses for each thread, and the limit of memory counts them.
            env={"LANG": "C.UTF-8", "PATH": os.defpath, "MALLOC_ARENA_MAX": "1"},
            cwd="/",
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"the sandbox did not answer: {error}") from error
    if answer.returncode < 0:
        raise SandboxError(f"the sandbox was killed by signal {-answer.returncode}")
    lines = io.BytesIO(answer.stdout)
    try:
        barriers = Barriers(**json.loads(next(lines, b"")))
        return barriers, [_run_of(json.loads(line)) for line in lines]
    except (IndexError, KeyError, TypeError, ValueError) as error:
        last = answer.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise SandboxError(f"the sandbox broke: {last or error}, exit status {answer.returncode}") from error


def _run_of(told: dict[str, Any]) -> Run:
    # Bytes that are no UTF-8 become lone surrogates, which no text that is expected has.
    return Run(**told | {"stdout": base64.b64decode(told["stdout"]).decode(errors="surrogateescape")})
