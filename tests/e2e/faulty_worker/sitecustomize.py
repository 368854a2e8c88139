"""On the PYTHONPATH of a rollout server: its worker fails as the file `GRPO_TEST_FAULT` says, while that is there.

`SIGKILL begin`, `load`, `finish`: the process sends itself that signal there, after the first bucket for `load`; with
`SIGSTOP` it stands still. `closed`: nobody reaches the worker's data port, so that its group does not form.
"""

import importlib.machinery
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

FAULT = Path(os.environ["GRPO_TEST_FAULT"])
RECEIVER = "grpo_rollout.receiver"


def fault() -> str:
    return FAULT.read_text() if FAULT.exists() else ""


def spoil(receiver: Any) -> None:
    def dying(name: str, method: Any) -> Any:
        def call(self: Any, *args: Any) -> Any:
            sign, _, point = fault().partition(" ")
            if point == name and (name != "load" or args[1] > 0):
                FAULT.unlink()
                os.kill(os.getpid(), signal.Signals[sign])
            return method(self, *args)

        return call

    own = receiver.Receiver
    own.begin, own.load, own.finish = dying("begin", own.begin), dying("load", own.load), dying("finish", own.finish)
    formed = receiver.WeightGroup

    def behind_a_closed_port(*args: Any, timeout_s: float, **options: Any) -> Any:
        if fault() == "closed":
            time.sleep(timeout_s)
            raise RuntimeError("nobody came to the data port")
        return formed(*args, timeout_s=timeout_s, **options)

    receiver.WeightGroup = behind_a_closed_port


class Finder:
    """Finds the receiver as ever, and spoils it once it is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != RECEIVER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            spoil(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]
