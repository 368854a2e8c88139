"""The event loop's thread: results come back, a dead background task is a crash."""

import asyncio

import pytest

from grpo_trainer.fleet.event_loop import EventLoopThread


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


async def fail() -> None:
    raise ValueError("background task died")


def test_a_coroutine_runs_to_its_result():
    with EventLoopThread() as loop:
        assert loop.run(answer()) == 42


def test_an_error_reaches_the_caller():
    with EventLoopThread() as loop, pytest.raises(ValueError, match="died"):
        loop.run(fail())


def test_a_dead_background_task_fails_the_next_call():
    dies = asyncio.Event()

    async def serve() -> None:
        await dies.wait()
        await fail()

    async def see_it_die() -> None:
        dies.set()
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})

    with EventLoopThread() as loop:
        loop.start(serve())
        loop.run(see_it_die())
        with pytest.raises(ValueError, match="background task died"):
            loop.run(answer())


def test_a_late_coroutine_is_cancelled():
    cancelled = []

    async def hang() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    with EventLoopThread() as loop:
        with pytest.raises(TimeoutError):
            loop.run(hang(), timeout_s=0.05)
        loop.run(asyncio.sleep(0.05))
    assert cancelled


def test_leaving_cancels_what_still_runs():
    ended = []

    async def serve() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    with EventLoopThread() as loop:
        loop.start(serve())
        loop.run(asyncio.sleep(0.01))
    assert ended


def test_a_background_task_that_was_ended_has_nothing_to_say():
    """What it uses is closed after it."""
    closed = False

    async def serve() -> None:
        while not closed:  # noqa: ASYNC110 - it asks again and again, as a watcher does
            await asyncio.sleep(0.001)
        raise RuntimeError("it uses what is closed")

    async def close() -> None:
        nonlocal closed
        closed = True
        await asyncio.sleep(0.05)

    with EventLoopThread() as loop:
        loop.start(serve())
        loop.run(asyncio.sleep(0.01))
        loop.end_background()
        loop.run(close())
        loop.check()
