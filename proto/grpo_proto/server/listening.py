"""Bind the listening socket, and raise the limit of open files, of which every connection needs one.

The service binds the socket itself: uvicorn ends the process when the port is in use.
"""

import resource
import socket
import sys

BACKLOG = 512
KEEP_IDLE_S = 120
"""How long a service keeps a connection between two requests (uvicorn's `timeout_keep_alive`): longer than clients do,
httpx 5 s, aiohttp 15 s, Go and its proxies 90 s. With uvicorn's own 5 s httpx now and then sends on a connection that
is being closed, and an agent that thinks for 5 s between two turns loses one."""


def listening_socket(host: str, port: int) -> socket.socket:
    """Listen on the first address of `host` ("" is every interface). Port 0 takes a free one. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def most_files() -> int:
    """How many files this process may have open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def ask_for_files(num_files: int) -> None:
    """Raise the limit of open files, often 1,024, to `num_files` or the system's maximum. Later children inherit it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    allowed = num_files if hard == resource.RLIM_INFINITY else min(num_files, hard)
    if most_files() < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
