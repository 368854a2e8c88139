"""The workarounds: how long vLLM's processes poll, which CPU registers they request, where their sockets are.

`tests/e2e/test_survival.py` kills an API server and looks for its engine.
"""

import logging
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_rollout.workarounds import SOCKETS_VARIABLE, SPIN_S, private_socket_folder, request_amx_tiles, spin_briefly

LOST_AFTER_S = 3.0
"""vLLM's reader checks again by itself after 5 s."""


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch):
    """A message queue as between vLLM's processes: (writer, reader). vLLM takes seconds to import."""
    from vllm.distributed.device_communicators import shm_broadcast

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


def test_refused_amx_tiles_are_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: False)
    with caplog.at_level(logging.ERROR):
        request_amx_tiles()
    assert "use --dtype float32" in caplog.text


def test_nothing_is_requested_on_a_cpu_without_amx(monkeypatch: pytest.MonkeyPatch):
    requests: list[bool] = []
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: requests.append(True))
    request_amx_tiles()
    assert requests == []


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOCKETS_VARIABLE, "")  # restored at the end, also when the code sets it


@pytest.mark.usefixtures("unset")
class TestSocketFolder:
    def test_it_is_private_and_removed_with_the_server(self):
        with private_socket_folder():
            folder = Path(os.environ[SOCKETS_VARIABLE])
            assert folder.stat().st_mode & 0o777 == 0o700
            (folder / "socket").touch()
        assert not folder.exists()

    def test_a_folder_that_the_user_has_set_is_kept(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        monkeypatch.setenv(SOCKETS_VARIABLE, str(tmp_path))
        with private_socket_folder():
            assert os.environ[SOCKETS_VARIABLE] == str(tmp_path)
        assert tmp_path.exists()

    def test_it_is_not_made_where_its_path_would_be_too_long(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        long = tmp_path / ("x" * 60)
        long.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(long))
        with private_socket_folder():
            assert not os.environ[SOCKETS_VARIABLE]
