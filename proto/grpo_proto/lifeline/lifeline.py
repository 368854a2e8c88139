"""What both sides of a lifeline have: the keys that the process group forms with, and how it ends."""

import threading
import time
from collections.abc import Callable


class Lifeline:
    """Keys and values that all members see, until `ended` says why the session is over."""

    def __init__(self) -> None:
        self.ended: str | None = None
        self._known: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._when_ended: list[Callable[[], None]] = []

    def set(self, key: str, value: bytes) -> None:
        raise NotImplementedError

    def get(self, key: str, timeout_s: float) -> bytes:
        """Wait for a key. Raises RuntimeError when the session is over, and after `timeout_s`."""
        self._ask(key)
        until_s = time.monotonic() + timeout_s
        with self._changed:
            while key not in self._known:
                if self.ended is not None:
                    raise RuntimeError(self.ended)
                if not self._changed.wait(until_s - time.monotonic()) and time.monotonic() >= until_s:
                    raise RuntimeError(f"no member has set {key} within {timeout_s:g} s")
            return self._known[key]

    def known(self, key: str) -> bool:
        """Whether this member has seen the key."""
        return key in self._known

    def when_ended(self, act: Callable[[], None]) -> None:
        """Call `act` once the session is over, in the thread that learns it: at once if it is."""
        with self._changed:
            self._when_ended.append(act)
            is_over = self.ended is not None
        if is_over:
            act()

    def _ask(self, key: str) -> None:
        """Have the value of a key sent here, if it has to be."""

    def _learn(self, key: str, value: bytes) -> None:
        with self._changed:
            self._known[key] = value
            self._changed.notify_all()

    def _end(self, reason: str) -> None:
        """Note that the session is over, if it was not before."""
        with self._changed:
            if self.ended is not None:
                return
            self.ended = reason
            self._changed.notify_all()
            acts = list(self._when_ended)
        for act in acts:
            act()
