"""What a fork server says while it loads the rewards: see `forkserver.py`."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from .base import ExecutorUnavailable, ForkServerDied, LoadedReward

SLOW_IMPORT_S = 10.0
"""How long the import of a plugin or a reward model may take until the log names it."""


class Loading:
    """`importing`: the plugin or reward model whose import has begun and not ended; empty without one.
    `notices`: for the operator."""

    def __init__(self, notices: logging.Logger):
        self._notices = notices
        self.importing = ""

    async def receive(
        self, heard: Callable[[], Awaitable[dict[str, Any] | None]], plugins: str
    ) -> dict[str, LoadedReward]:
        """Take the rewards from the messages that `heard` returns; None there is the end of the fork server. `plugins`:
        all that are loaded, in one text.

        Raises ExecutorUnavailable when they cannot be loaded.
        """
        rewards: dict[str, LoadedReward] = {}
        late: asyncio.TimerHandle | None = None
        try:
            while "ready" not in (message := await heard() or {}):
                if not message:
                    what = plugins or self.importing or "the rewards"
                    raise ForkServerDied(f"the fork server died while it loaded {what}")
                if "failed" in message:
                    raise ExecutorUnavailable(message["failed"])
                if late is not None:
                    late.cancel()
                self.importing = message.get("importing", "")
                if self.importing:
                    text = ("importing %s for %g s; its code runs or waits", self.importing, SLOW_IMPORT_S)
                    late = asyncio.get_running_loop().call_later(SLOW_IMPORT_S, self._notices.warning, *text)
                elif "notice" in message:
                    self._notices.warning("%s", message["notice"])
                else:
                    loaded = LoadedReward.model_validate(message["reward"])
                    rewards[loaded.description.name] = loaded
        finally:
            if late is not None:
                late.cancel()
        return rewards
