"""The store of a process group, and with Gloo the TCP connections of the group, which can be shut down.

Gloo has no call that frees who waits in it; its connections end at a listener of each member. So each member tells the
others where it listens, beside what Gloo itself stores, and finds the group's connections among its own by that.
"""

import os
import socket
import stat
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

from torch.distributed import Store

from .lifeline import Lifeline

Address = tuple[str, int]
DeviceT = TypeVar("DeviceT")
OPEN_FILES = "/dev/fd"

_one_at_a_time = threading.Lock()


class KeyStore(Store):  # type: ignore[misc]
    """The keys of a lifeline, as a process group wants them."""

    def __init__(self, lifeline: Lifeline, timeout_s: float):
        super().__init__()
        self._lifeline, self._timeout_s = lifeline, timeout_s

    def set(self, key: str, value: bytes) -> None:
        self._lifeline.set(key, value)

    def get(self, key: str) -> bytes:
        """Raises RuntimeError when the session ends before the key is there, and when it does not come in time."""
        return self._lifeline.get(key, self._timeout_s)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self._lifeline.get(key, timeout.total_seconds() if timeout else self._timeout_s)

    def check(self, keys: list[str]) -> bool:
        return all(self._lifeline.known(key) for key in keys)


class GlooStore(KeyStore):
    """Adds to every value where its member listens: `own` here; `peers` of what has been read."""

    def __init__(self, lifeline: Lifeline, timeout_s: float, own: Address):
        super().__init__(lifeline, timeout_s)
        self.own = own
        self.peers: set[Address] = set()

    def set(self, key: str, value: bytes) -> None:
        host, port = self.own
        super().set(key, f"{port} {host}\n".encode() + value)

    def get(self, key: str) -> bytes:
        where, value = super().get(key).split(b"\n", 1)
        port, host = where.decode().split(" ", 1)
        self.peers.add((host, int(port)))
        return value


def new_listener(create: Callable[[], DeviceT]) -> tuple[DeviceT, Address]:
    """Return Gloo's device that `create` makes, and where it listens, which the device does not tell.

    Raises RuntimeError when another listener appeared in this process at the same time.
    """
    with _one_at_a_time:
        before = set(_listeners())
        device = create()
        found = set(_listeners()) - before
    if len(found) != 1:
        raise RuntimeError(f"{len(found)} new listeners instead of Gloo's one: try again")
    return device, found.pop()


def shut_connections(own: Address, peers: Collection[Address]) -> None:
    """Shut down this process's connections that end at `own` or at one of `peers`."""
    for connection in _sockets():
        with connection, suppress(OSError):
            here, there = connection.getsockname()[:2], connection.getpeername()[:2]
            if here == own or there in peers:
                connection.shutdown(socket.SHUT_RDWR)


def _listeners() -> Iterator[Address]:
    for found in _sockets():
        with found, suppress(OSError):
            if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                yield found.getsockname()[:2]


def _sockets() -> Iterator[socket.socket]:
    """Duplicates of this process's TCP sockets, to be closed."""
    for name in os.listdir(OPEN_FILES):
        try:
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):
                continue
            found = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed meanwhile
            continue
        if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
            yield found
        else:
            found.close()
