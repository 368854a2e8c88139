"""`healthcheck.py PORT [HOST] [--end-when-stuck]`: exit status 0 when GET /livez answers 200, else 1 and the reason.

Docker restarts what has ended, and leaves alone what is unhealthy. With `--end-when-stuck` a server is killed that
answers 503 three times in a row, so one that knows that it is stuck, or that takes a connection and says nothing to it
thirty times in a row; the restart policy of its container does the rest, as a liveness probe does in Kubernetes. A
server that refuses connections is starting, and is waited for.

A bare socket: it runs every few seconds in every container, and importing an HTTP client costs more than asking.
"""

import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

TIMEOUT_S = 5.0
MAX_IN_A_ROW = {"503": 3, "no answer": 30}
COUNT_FILE = Path(os.environ.get("TMPDIR", "/tmp"), "grpo-livez")  # noqa: S108 - a container has its own
INITS = ("docker-init", "tini", "catatonit")
"""What `init: true` makes the first process: it ends with its child."""


def status_line(host: str, port: int) -> str:
    """The first line of the answer of this container's own server."""
    with socket.create_connection((host, port), TIMEOUT_S) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        with connection.makefile("rb") as answer:
            return answer.readline(256).decode("latin-1").strip()


def count_in_a_row(kind: str) -> int:
    """How often it has been so, this time included."""
    try:
        last, _, count = COUNT_FILE.read_text().rpartition(" ")
        in_a_row = int(count) + 1 if last == kind else 1
    except (OSError, ValueError):
        in_a_row = 1
    with contextlib.suppress(OSError):
        COUNT_FILE.write_text(f"{kind} {in_a_row}")
    return in_a_row


def end_the_server(kind: str) -> None:
    """Kill the children of the container's init; on anything that is no such container, do nothing."""
    if Path("/proc/1/comm").read_text().strip() not in INITS:
        return
    with contextlib.suppress(OSError), open("/proc/1/fd/2", "w") as log:
        print(f"error: /livez: {kind}, {MAX_IN_A_ROW[kind]} times: the health check kills this server", file=log)
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "stat").read_text().rpartition(")")[2].split()[1] == "1":
                os.kill(int(entry.name), signal.SIGKILL)


def main() -> int:
    port, host, *_ = [word for word in sys.argv[1:] if not word.startswith("--")] + ["127.0.0.1"]
    status, kind = "", None
    try:
        line = status_line(host, int(port))
        status = "".join(line.split(" ")[1:2])
        kind = "503" if status == "503" else None
    except TimeoutError:
        line = kind = "no answer"
    except OSError as error:
        line = f"/livez: {error}"
    print(line)
    if "--end-when-stuck" in sys.argv:
        stuck = kind is not None and count_in_a_row(kind) >= MAX_IN_A_ROW[kind]
        if stuck or kind is None:
            COUNT_FILE.unlink(missing_ok=True)
        if stuck:
            end_the_server(kind)
    return 0 if status == "200" else 1


if __name__ == "__main__":
    sys.exit(main())
