"""What was made last from texts: many that are small, few that are large."""

from collections.abc import Callable, Hashable
from operator import itemgetter
from threading import Lock
from typing import Generic, TypeVar

from cachetools import LRUCache

MAX_SIZE = 1 << 19
"""Characters or bytes of all texts kept, BASE_SIZE more for each; what is made of one takes up to forty times that."""
LEAST_VALUES = 8
"""A value is not kept when fewer than so many of its size would have room."""
BASE_SIZE = 1000

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class Remembered(Generic[KeyT, ValueT]):
    """Values by what they were made from, those used last. Of its methods `once` alone is for threads."""

    def __init__(self, max_size: int = MAX_SIZE):
        self._max_one_size = max_size // LEAST_VALUES
        self._values: LRUCache[KeyT, tuple[int, ValueT]] = LRUCache(max_size, getsizeof=itemgetter(0))
        self._lock = Lock()

    def once(self, key: KeyT, make: Callable[[], ValueT], size: Callable[[ValueT], int]) -> ValueT:
        """The value, made where it is not known. Without worker processes, rewards run in threads."""
        with self._lock:
            known = self.get(key)
        if known is not None:
            return known[0]
        value = make()
        with self._lock:
            self.put(key, value, size(value))
        return value

    def get(self, key: KeyT) -> tuple[ValueT] | None:
        """The value in a tuple, since it may be None itself; None when it is not known."""
        known = self._values.get(key)
        return None if known is None else (known[1],)

    def put(self, key: KeyT, value: ValueT, size: int) -> None:
        """`size`: characters or bytes of the text. What is larger than an eighth of all that may be is not kept."""
        if size <= self._max_one_size:
            self._values[key] = size + BASE_SIZE, value

    def clear(self) -> None:
        self._values.clear()
