"""What the plugin changes in every process of vLLM's: how long it polls, and what it asks Linux for."""

import logging
import threading
import time
from typing import Any

import pytest
import torch

from grpo_rollout.tile_unit import request_tile_unit

LOST_AFTER_S = 3.0
"""vLLM's reader looks again by itself after 5 s."""


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch):
    """A message queue as between vLLM's processes: (writer, reader). vLLM takes seconds to import."""
    from vllm.distributed.device_communicators import shm_broadcast

    from grpo_rollout.short_spin import spin_briefly

    monkeypatch.setattr(shm_broadcast, "SpinCondition", shm_broadcast.SpinCondition)
    monkeypatch.setattr(shm_broadcast, "SHM_READER_RECHECK_INTERVAL_MS", 5000)
    spin_briefly()
    writer = shm_broadcast.MessageQueue(1, 1)
    readers: list[Any] = []

    def join() -> None:
        readers.append(shm_broadcast.MessageQueue.create_from_handle(writer.export_handle(), 0))
        readers[0].wait_until_ready()

    thread = threading.Thread(target=join)
    thread.start()
    writer.wait_until_ready()
    thread.join()
    yield writer, readers[0]
    readers[0].shutdown()
    writer.shutdown()


@pytest.mark.vllm
def test_a_reader_spins_briefly(queue):
    from grpo_rollout.short_spin import SPIN_S

    assert queue[1]._spin_condition.busy_loop_s == SPIN_S


@pytest.mark.vllm
@pytest.mark.parametrize("spins", [False, True])
@pytest.mark.parametrize("pause_s", [0.0, 0.001, 0.002, 0.006, 0.012])
def test_no_message_is_slept_through(queue, pause_s: float, spins: bool):
    """Pairs of messages at once and after pauses about as long as the spin, which is 4 ms. Without a spin ZeroMQ drops
    wake-up calls, as it does with one on a machine whose cores are all busy."""
    writer, reader = queue
    if not spins:
        reader._spin_condition.busy_loop_s = 0.0
    received: list[int] = []

    def read() -> None:
        received.extend(reader.dequeue(timeout=LOST_AFTER_S) for _ in range(100))

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(0, 100, 2):
        writer.enqueue(number)
        writer.enqueue(number + 1)
        time.sleep(pause_s)
    thread.join(LOST_AFTER_S + 10.0)
    assert received == list(range(100))


def test_a_refused_tile_unit_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: False)
    with caplog.at_level(logging.ERROR):
        request_tile_unit()
    assert "use --dtype float32" in caplog.text


def test_a_processor_without_the_unit_is_not_asked(monkeypatch: pytest.MonkeyPatch):
    asked: list[bool] = []
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: asked.append(True))
    request_tile_unit()
    assert asked == []
