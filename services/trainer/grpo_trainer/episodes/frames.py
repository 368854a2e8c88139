"""Messages between the trainer, the nursery and the processes of episodes: JSON, and nothing else.

Packets go between trainer and nursery, one message each. Frames go between the trainer and the process of one episode:
four bytes of length, then a message. A process that runs a user's code may send anything, so that lengths are checked
before they are believed.
"""

import json
import socket
import struct
from typing import Any, cast

PACKET_BYTES = 128 * 1024
"""Limit of a packet; below the send buffer that Linux gives a socket."""
MAX_FRAME_BYTES = 32 * 2**20
HEADER = struct.Struct("!I")

Frame = dict[str, Any]


class FrameError(ValueError):
    """What arrived is no frame."""


def packed(message: Frame) -> bytes:
    """One frame. What JSON has no form for is sent as its text. Raises FrameError for one that is too large."""
    body = json.dumps(message, default=str).encode()
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {len(body):,} bytes; at most {MAX_FRAME_BYTES:,} can be sent")
    return HEADER.pack(len(body)) + body


def length_of(header: bytes) -> int:
    """Raises FrameError for a length above the limit."""
    length = int(HEADER.unpack(header)[0])
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {length:,} bytes is announced; at most {MAX_FRAME_BYTES:,} are read")
    return length


def unpacked(body: bytes) -> Frame:
    """Raises FrameError for anything but a JSON object."""
    try:
        message = json.loads(body)
    except ValueError as error:
        raise FrameError(f"no JSON: {error}") from error
    if not isinstance(message, dict):
        raise FrameError("no JSON object")
    return message


def receive(channel: socket.socket) -> Frame | None:
    """Wait for the next frame; None when the other side is gone."""
    header = _exactly(channel, HEADER.size)
    body = _exactly(channel, length_of(header)) if header is not None else None
    return unpacked(body) if body is not None else None


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = channel.recv(min(count - len(parts), 2**16))
        if not part:
            return None
        parts += part
    return bytes(parts)


def packet(message: Frame) -> bytes:
    """One packet. Raises FrameError for one that is too large."""
    body = json.dumps(message).encode()
    if len(body) > PACKET_BYTES:
        raise FrameError(f"a packet of {len(body):,} bytes; at most {PACKET_BYTES:,} can be sent")
    return body


def opened(body: bytes) -> Frame:
    """The message of a packet, which one of ours has sent."""
    return cast(Frame, json.loads(body))
