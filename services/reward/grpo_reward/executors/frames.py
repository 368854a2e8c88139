"""JSON messages on a stream socket between our own processes: four bytes of length, then the bytes."""

import socket
import struct

LENGTH = struct.Struct("!I")
PROGRESS = struct.Struct("qqd")
"""Shared memory of one worker: chunk number, item in work, and since when (CLOCK_MONOTONIC, the same in all
processes). Written when a chunk has come and before every item, so that the server knows what to blame; −1 is none."""
PROGRESS_BYTES = 4096
PACKET_BYTES = 1 << 17
"""Largest message between the server and its fork server."""


def send_frame(sock: socket.socket, body: bytes) -> None:
    sock.sendall(LENGTH.pack(len(body)) + body)


def receive_frame(sock: socket.socket) -> bytes | None:
    """The next message; None when the other end has closed. Waits without limit: a worker waits for work."""
    header = _receive_exactly(sock, LENGTH.size)
    return None if header is None else _receive_exactly(sock, LENGTH.unpack(header)[0])


def _receive_exactly(sock: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
