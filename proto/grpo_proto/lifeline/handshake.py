"""Prove on both ends of a new connection that the other one knows the session's secret, without sending it.

    host   → member  16 random bytes
    member → host    session, rank, 16 random bytes, HMAC of all of it
    host   → member  HMAC of all of it, in the other direction

HMAC-SHA256 over a word for the direction, both nonces, session and rank. The whole exchange has a limit, whatever comes
in which pieces.
"""

import hmac
import secrets
import socket
import struct
import time
from collections.abc import Callable

NONCE_BYTES, PROOF_BYTES = 16, 32
_CLAIM = struct.Struct(f"!QI{NONCE_BYTES}s{PROOF_BYTES}s")


class StrangerError(Exception):
    """The other end does not know the secret, or knows another session."""


def admit(connection: socket.socket, secret_of: Callable[[int], str | None], *, timeout_s: float) -> tuple[int, int]:
    """Return session and rank of a member that knows the session's secret. Raises StrangerError and OSError."""
    until_s = time.monotonic() + timeout_s
    ours = secrets.token_bytes(NONCE_BYTES)
    connection.sendall(ours)
    session, rank, theirs, proof = _CLAIM.unpack(_received(connection, _CLAIM.size, until_s))
    secret = secret_of(session)
    if secret is None:
        raise StrangerError(f"session {session} is not open")
    if not hmac.compare_digest(proof, _proof(secret, b"member", ours, theirs, session, rank)):
        raise StrangerError(f"another secret than session {session} has")
    connection.sendall(_proof(secret, b"host", ours, theirs, session, rank))
    return session, rank


def introduce(connection: socket.socket, secret: str, *, session: int, rank: int, timeout_s: float) -> None:
    """Join as `rank` of `session`. Raises StrangerError when the host does not know the secret; and OSError."""
    until_s = time.monotonic() + timeout_s
    theirs, ours = _received(connection, NONCE_BYTES, until_s), secrets.token_bytes(NONCE_BYTES)
    connection.sendall(_CLAIM.pack(session, rank, ours, _proof(secret, b"member", theirs, ours, session, rank)))
    answer = _received(connection, PROOF_BYTES, until_s)
    if not hmac.compare_digest(answer, _proof(secret, b"host", theirs, ours, session, rank)):
        raise StrangerError("the host does not know the secret of the session")


def _proof(secret: str, direction: bytes, of_host: bytes, of_member: bytes, session: int, rank: int) -> bytes:
    message = direction + of_host + of_member + struct.pack("!QI", session, rank)
    return hmac.digest(secret.encode(), message, "sha256")


def _received(connection: socket.socket, size: int, until_s: float) -> bytes:
    received = b""
    while len(received) < size:
        connection.settimeout(max(until_s - time.monotonic(), 0.001))
        data = connection.recv(size - len(received))
        if not data:
            raise StrangerError("the connection was closed: the other end knows no such session or another secret")
        received += data
    return received
