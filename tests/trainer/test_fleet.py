"""The fleet: who gets traffic, and in which weight session."""

import asyncio

from grpo_trainer.fleet import Fleet


async def test_a_request_that_waited_for_a_member_meets_it_in_the_new_session():
    fleet = Fleet(["http://127.0.0.1:1"], min_replicas=1)
    seen: list[int] = []

    async def wait_for_member() -> None:
        assert await fleet.least_busy(5.0) is not None
        seen.append(fleet.session)

    waiting = asyncio.create_task(wait_for_member())
    await asyncio.sleep(0)
    await fleet.admit(fleet.replicas, session=7)
    await waiting
    assert seen == [7]
    await fleet.expel(fleet.replicas[0], "test")
    assert await fleet.least_busy(0.01) is None
    assert fleet.replicas[0].lost.is_set()
    await fleet.close()
