"""Which item of a chunk a worker was lost for."""

from grpo_proto import RewardScore

from .base import Chunk
from .worker_handle import START_LIMIT_S, Ending

MAX_DEATHS_BEFORE = 5
"""Deaths of workers before they began with a chunk, until its items are tried one by one."""
MAX_SLOW_BEGINNINGS = 2
"""Workers that have read a chunk and do not come to its first item, until that is what all its items are late with."""


class Blame:
    """Remembers how workers were lost with one chunk, and settles the items that are to blame.

    An item that was in work when its worker was late is late itself. One whose worker died is tried once more, since
    something else may have killed it. Before the first item nobody knows: after some deaths there the items are tried
    one by one; workers that are late there are late with all of them; a worker that did not even read the chunk was
    stopped by something else, which is believed of so many of them.
    """

    def __init__(self, chunk: Chunk, *, workers: int):
        self._chunk = chunk
        self._max_unread = workers + MAX_DEATHS_BEFORE
        self._retried: set[int] = set()
        self._one_by_one = False
        self.suspected = False
        """Whether an item of it was in work when all workers were lost: it may have ended the fork server."""
        self._deaths_before = self._slow_beginnings = self._unread = 0

    def next_items(self) -> list[int]:
        """What to give to the next worker; nothing when all items have outcomes.

        What is tried once more comes first: those before it may be what its worker died of.
        """
        items = sorted(self._chunk.open_items(), key=lambda item: item not in self._retried)
        return items[:1] if self._one_by_one else items

    def lost(self, ending: Ending, items: list[int], *, with_fork_server: bool) -> None:
        """Take in how a worker's turn at `items` ended. What stays open is for the next worker."""
        self._chunk.eager = True
        self.suspected = self.suspected or (with_fork_server and ending.item >= 0)
        if ending.kind == "unread":
            self._unread += 1
            if self._unread > self._max_unread:
                self._chunk.give_up("error", f"no worker took this up, {self._unread} of them one after the other")
        elif ending.item >= 0:
            self._settle(ending.item, ending)
        elif ending.kind == "timeout":
            self._slow_beginnings += 1
            if self._slow_beginnings == MAX_SLOW_BEGINNINGS:
                limit_s = START_LIMIT_S + self._chunk.timeout_s
                late = f"reading it and its params took {limit_s:g} s and more before the first sample"
                self._chunk.give_up("timeout", late)
        elif self._deaths_before < MAX_DEATHS_BEFORE:
            self._deaths_before += 1  # it died of something else, most likely while it was idle
        elif len(items) > 1:
            self._one_by_one = True  # to find out which it was
        else:
            self._settle(items[0], ending)

    def _settle(self, item: int, ending: Ending) -> None:
        if ending.kind == "timeout":
            late = f"no score within {self._chunk.timeout_s:g} s"
            outcome = RewardScore(score=None, status="timeout", detail=late)
        elif item in self._retried:
            died = f"the worker process died of it twice: {ending.detail}"
            outcome = RewardScore(score=None, status="error", detail=died)
        else:
            self._retried.add(item)
            return
        self._chunk.settle(item, outcome)
