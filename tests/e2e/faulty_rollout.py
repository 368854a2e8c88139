"""`grpo-rollout` whose worker, a fork of it, fails as the file `GRPO_TEST_FAULT` says, while that is there.

`SIGKILL begin`, `load`, `finish`: the process sends itself that signal there, after the first bucket for `load`; with
`SIGSTOP` it stands still. `closed`: nobody reaches the worker's data port, so that its group does not form.
"""

import importlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from grpo_rollout.__main__ import main

FAULT = Path(os.environ["GRPO_TEST_FAULT"])


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


spoil(importlib.import_module("grpo_rollout.receiver"))
sys.exit(main())
