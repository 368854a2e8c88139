"""Start the ranks of one machine, and end with the status of the first that fails.

Not by torchrun: its rendezvous on one machine listens on every interface, and loads what it finds there with pickle.
Here the store of the rendezvous listens on 127.0.0.1 alone. Rank 0 gets the listening socket as an open file, so that
no other process can take the port meanwhile, and this process need not import torch.
"""

import ctypes
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType

from grpo_proto.server.listening import listening_socket

from .launch import stop_limit_s
from .stop_signal import STOP_SIGNALS

LISTENER_VARIABLE = "GRPO_RANKS_LISTENER"
"""Number of the open file, in rank 0, of the socket on which the store of the rendezvous listens."""
FAILURE_LIMIT_S = 30.0
"""How long the other ranks may run after one has failed, or after rank 0 has ended."""
KILL_LIMIT_S = 10.0
POLL_S = 0.05
_PR_SET_PDEATHSIG = 1


def run_ranks(command: Sequence[str], count: int) -> int:
    """Run `command` as `count` ranks, with the variables that torchrun sets.

    A stop signal goes to every rank. When a rank fails the others are stopped. Returns 0, the exit status of the rank
    that failed first, or 128 + the signal that stopped all.
    """
    listener = listening_socket("127.0.0.1", 0)
    environment = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(listener.getsockname()[1]),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count))),
        # The ranks' own Gloo groups listen on loopback; a weight session has an interface of its own.
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    stops: list[int] = []
    ranks: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: FrameType | None) -> None:
        stops.append(number)
        _send(ranks, number)

    before = {number: signal.signal(number, forward) for number in STOP_SIGNALS}
    try:
        with listener:
            ranks += [_start(command, environment, rank, listener if rank == 0 else None) for rank in range(count)]
        for number in stops:  # that came while they were started
            _send(ranks, number)
        status = _wait(ranks, stops)
    finally:
        _end(ranks)
        for number, handler in before.items():
            signal.signal(number, handler)
    return status


def _start(
    command: Sequence[str], environment: Mapping[str, str], rank: int, listener: socket.socket | None
) -> "subprocess.Popen[bytes]":
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    if listener is not None:
        own[LISTENER_VARIABLE] = str(listener.fileno())
    return subprocess.Popen(  # noqa: S603 - our own interpreter
        command,
        env=os.environ | environment | own,
        pass_fds=[listener.fileno()] if listener is not None else [],
        # A session of their own: Ctrl-C on a terminal reaches them once, by way of this process.
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )


def _tell(text: str) -> None:
    with suppress(OSError):  # the terminal may be gone
        print(text, file=sys.stderr)


def _send(ranks: Sequence["subprocess.Popen[bytes]"], number: int) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.send_signal(number)


def _die_with_parent() -> None:
    """Have the kernel kill this rank when its parent dies, however that dies. Runs between fork and exec."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _wait(ranks: Sequence["subprocess.Popen[bytes]"], stops: Sequence[int]) -> int:
    """Wait until all have ended or one has failed. Returns the exit status.

    Kills what still runs at the limit of a stop, and `FAILURE_LIMIT_S` after rank 0, without which none has work.
    """
    until_s = math.inf
    while running := [rank for rank in ranks if rank.poll() is None]:
        if stops:
            until_s = min(until_s, time.monotonic() + stop_limit_s())
        elif any(rank.returncode for rank in ranks):
            break
        if ranks[0].returncode is not None:
            until_s = min(until_s, time.monotonic() + FAILURE_LIMIT_S)
        if time.monotonic() > until_s:
            for rank in running:
                rank.kill()
                _tell(f"rank {ranks.index(rank)} did not end in time; it is killed")
            break
        time.sleep(POLL_S)
    if stops:
        _tell(f"stopped by signal {stops[0]}, with all ranks")
        return 128 + stops[0]
    failed = [(number, rank.returncode) for number, rank in enumerate(ranks) if rank.returncode]
    if not failed:
        return 0
    # Several may have failed since the last look. One that a signal ended comes first: it could not say why itself,
    # and the others often end because it is gone.
    number, status = min(failed, key=lambda one: (one[1] > 0, one[0]))
    how = f"exit status {status}" if status >= 0 else f"signal {-status}"
    print(f"error: rank {number} ended with {how}; the other ranks are stopped", file=sys.stderr)
    return status if status > 0 else 1


def _end(ranks: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Stop what still runs, and kill what runs on after `FAILURE_LIMIT_S`."""
    running = [rank for rank in ranks if rank.poll() is None]
    _send(running, signal.SIGTERM)
    until_s = time.monotonic() + FAILURE_LIMIT_S
    for rank in running:
        try:
            rank.wait(max(until_s - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            rank.kill()
            with suppress(subprocess.TimeoutExpired):  # in a driver's call that does not return, which no signal ends
                rank.wait(KILL_LIMIT_S)
