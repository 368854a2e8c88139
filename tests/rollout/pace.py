"""An engine that takes its time while a test asks for it: what runs in it is still running, also on a quick machine."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STEP_S = 0.02
"""About a step of a real model: 250 tokens take five seconds, and the cores are free for others."""
VARIABLE = "GRPO_TESTS_SLOW_WHILE"
"""Names the file that makes the engine slow while it is there."""


@contextmanager
def slow(file: Path) -> Iterator[None]:
    """Slow down the engine whose environment names `file`."""
    file.touch()
    try:
        yield
    finally:
        file.unlink()


def pace_engines() -> None:
    """Have every engine that is forked of this process look for its file after each step."""
    from vllm.v1.engine.core import EngineCore

    EngineCore.step = _paced(EngineCore.step)
    EngineCore.step_with_batch_queue = _paced(EngineCore.step_with_batch_queue)


def _paced(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def paced_step(core: Any) -> Any:
        done = step(core)
        if os.path.exists(os.environ.get(VARIABLE, "")):
            time.sleep(STEP_S)
        return done

    return paced_step
