"""A socket that listens, bound by us: uvicorn's answer to a port in use is to end the process."""

import socket

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
