"""What the process of an episode prints: the first MiB goes into a file, the rest is read and thrown away.

It goes on being read: a process that prints a gigabyte would wait for ever otherwise, and one whose output was shut
would fail.
"""

import contextlib
import os
from pathlib import Path
from typing import IO

MAX_LOG_BYTES = 2**20
TAIL_BYTES = 16 * 1024
READ_BYTES = 2**16
MAX_DRAIN_BYTES = 2**20
"""Above what a pipe holds."""


class Pipe:
    """The reading end of one of the two streams."""

    def __init__(self, output: "Output", reader: int):
        self.output, self.reader = output, reader
        self.tail = b""

    def fileno(self) -> int:
        return self.reader

    def read(self) -> int:
        """Take what is there; return the number of bytes."""
        try:
            data = os.read(self.reader, READ_BYTES)
        except (BlockingIOError, OSError):
            return 0
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        self.output.write(data)
        return len(data)


class Output:
    """Two pipes into one file, which is made with the first byte. `close` it in every process that has a copy."""

    def __init__(self, log: Path):
        self.log = log
        self.pipes: list[Pipe] = []
        self.writers: list[int] = []
        self._file: IO[bytes] | None = None
        self._written = 0
        for _ in ("stdout", "stderr"):
            reader, writer = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(reader, False)
            self.pipes.append(Pipe(self, reader))
            self.writers.append(writer)

    def started(self) -> None:
        """Close the writing ends: the process has its own."""
        self._close_writers()

    def write(self, data: bytes) -> None:
        room = MAX_LOG_BYTES - self._written
        if not data or room < 0:
            return
        with contextlib.suppress(OSError):  # a full disk: the episode goes on, its output is lost
            if self._file is None:
                self.log.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.log.open("wb", buffering=0)  # a fork that closes its copy must write nothing
            self._file.write(data[:room])
            if len(data) > room:
                self._file.write(b"\n[cut: the output is longer than 1 MiB]\n")
        self._written += len(data)

    def drain(self) -> None:
        """Read what the process has left in its pipes."""
        for pipe in self.pipes:
            left = MAX_DRAIN_BYTES
            while left > 0 and (count := pipe.read()):
                left -= count

    def tail(self, count: int) -> str:
        """The end of the error output, or of the output where there is none."""
        out, err = self.pipes
        return (err.tail or out.tail)[-count:].decode(errors="replace").strip()

    def last_line(self) -> str:
        """The last line of the output that is not empty; at most 16 KiB of it."""
        lines = [line for line in self.pipes[0].tail.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else ""

    def close(self) -> None:
        self._close_writers()
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                os.close(pipe.reader)
            pipe.reader = -1
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _close_writers(self) -> None:
        for writer in self.writers:
            with contextlib.suppress(OSError):
                os.close(writer)
        self.writers = []
