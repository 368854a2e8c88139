"""`healthcheck.py PORT [HOST] [--end-when-stuck]`: exit status 0 when GET /livez answers 200, else 1 and the reason.

Docker restarts what has ended, and leaves alone what is unhealthy. With `--end-when-stuck` a server that answers 503
three times in a row, so one that knows that it is stuck, is killed, and the restart policy of its container does the
rest, as a liveness probe does in Kubernetes. Silence kills nobody: a server may be starting, or the machine busy.

A bare socket: it runs every few seconds in every container, and importing an HTTP client costs more than asking.
"""

import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

TIMEOUT_S = 5.0
STUCK_ANSWERS = 3
COUNT_FILE = Path(os.environ.get("TMPDIR", "/tmp"), "grpo-livez-503")  # noqa: S108 - a container has its own
INITS = ("docker-init", "tini", "catatonit")
"""What `init: true` makes the first process: it ends with its child."""


def status_line(host: str, port: int) -> str:
    """The first line of the answer of this container's own server."""
    with socket.create_connection((host, port), TIMEOUT_S) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        with connection.makefile("rb") as answer:
            return answer.readline(256).decode("latin-1").strip()


def count_stuck_answers(stuck: bool) -> int:
    """How many there have been in a row, this one included."""
    with contextlib.suppress(OSError, ValueError):
        count = int(COUNT_FILE.read_text()) if COUNT_FILE.exists() else 0
        if stuck or count:
            COUNT_FILE.write_text(str(count + 1 if stuck else 0))
        return count + 1 if stuck else 0
    return 0


def end_the_server() -> None:
    """Kill the children of the container's init; on anything that is no such container, do nothing."""
    if Path("/proc/1/comm").read_text().strip() not in INITS:
        return
    with contextlib.suppress(OSError), open("/proc/1/fd/2", "w") as log:
        print(f"error: /livez has said 503 {STUCK_ANSWERS} times: the health check kills this server", file=log)
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "stat").read_text().rpartition(")")[2].split()[1] == "1":
                os.kill(int(entry.name), signal.SIGKILL)


def main() -> int:
    port, host, *_ = [word for word in sys.argv[1:] if not word.startswith("--")] + ["127.0.0.1"]
    try:
        line = status_line(host, int(port))
    except OSError as error:
        print(f"/livez: {error}")
        return 1
    print(line)
    status = line.split(" ")[1:2]
    if "--end-when-stuck" in sys.argv and count_stuck_answers(status == ["503"]) >= STUCK_ANSWERS:
        COUNT_FILE.unlink(missing_ok=True)
        end_the_server()
    return 0 if status == ["200"] else 1


if __name__ == "__main__":
    sys.exit(main())
