"""The server's end of a worker, without a worker."""

import asyncio
import os
import socket

import pytest
import uvloop

from grpo_reward.executors.worker_handle import WorkerHandle


@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("cancelled", [False, True])
def test_closing_it_while_it_connects_closes_no_descriptor_of_others(steps: int, cancelled: bool):
    """libuv has the number of the descriptor by then: it closes it, and ends the process when it is another's."""

    async def connect_and_close() -> None:
        handles = [WorkerHandle(number) for number in range(20)]
        connecting = [asyncio.create_task(handle.connect()) for handle in handles]
        for _ in range(steps):
            await asyncio.sleep(0)
        for handle, task in zip(handles, connecting, strict=True):
            if cancelled:
                task.cancel()
            handle.close()
        others = [socket.socketpair() for _ in range(20)]
        await asyncio.gather(*connecting, return_exceptions=True)
        await asyncio.sleep(0.01)
        for one, other in others:
            one.send(b"x")
            assert other.recv(1) == b"x"
            one.close()
            other.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.sleep(0))  # the first loop of a process has descriptors that stay
    before = len(os.listdir("/proc/self/fd"))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(connect_and_close())
    assert len(os.listdir("/proc/self/fd")) == before


async def test_the_memory_it_shares_with_a_worker_cannot_be_cut_off():
    handle = WorkerHandle(1)
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(handle.progress_fd, size)
    handle.close()
