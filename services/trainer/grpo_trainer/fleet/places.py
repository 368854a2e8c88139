"""Which server takes the next request: the least busy member; for a request that goes alone, one with nothing else.

Waits for: a member that no such request holds, or to have one to itself. Unblocked by: the end of a request, which has
its own deadline; a push, which makes members; the loss of the last member.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .fleet import Fleet, Replica


@asynccontextmanager
async def place(fleet: Fleet, *, alone: bool = False) -> AsyncIterator[Replica | None]:
    """Hold a place for one request on the member with the fewest in flight; None when there is no member any more.

    `alone`: keep new requests away from that member, and wait until those in flight there have ended.
    """
    await fleet.until(lambda: not fleet.members or bool(_shared(fleet)))
    replica = min(_shared(fleet), key=lambda replica: replica.in_flight, default=None)
    if replica is None:
        yield None
        return
    replica.alone = alone
    try:
        if alone:
            await fleet.until(lambda: replica.in_flight == 0 or not replica.member)
        replica.in_flight += 1
        try:
            yield replica if replica.member else None
        finally:
            replica.in_flight -= 1
    finally:
        replica.alone &= not alone
        await fleet.wake()


def _shared(fleet: Fleet) -> list[Replica]:
    return [replica for replica in fleet.members if not replica.alone]
