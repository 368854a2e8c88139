"""A socket that listens, bound by us: uvicorn's answer to a port in use is to end the process.

And how many connections it may bring: each is a file.
"""

import resource
import socket
import sys

BACKLOG = 512


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
    """How many this process may have open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def ask_for_files(num_files: int) -> None:
    """As many as the system allows: often a process has 1,024 until it asks for more. Later children have as many."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    allowed = num_files if hard == resource.RLIM_INFINITY else min(num_files, hard)
    if most_files() < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
