"""`grpo-reward` without the built-in rewards, whose imports take most of a start: for what is about none of them.

`python -P plugins_only.py serve …` is the command with the workers of plugins, which are real processes as ever. Both
kinds of workers are in `test_separate.py` and `test_server.py`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_reward.executors import separate
from grpo_reward.executors.process import ProcessExecutor

COMMAND = [sys.executable, "-P", __file__]
PLAIN = str(Path(__file__).parent / "plugins/plain.py")
"""A plugin whose reward `plain` gives 1 to any text."""


def workers_of_plugins(*, plugins: Sequence[Path], **options: Any) -> ProcessExecutor:
    """In the place of `worker_processes`."""
    return ProcessExecutor(plugins=plugins, **options)


if __name__ == "__main__":
    from grpo_reward.__main__ import main

    separate.worker_processes = workers_of_plugins
    main()
