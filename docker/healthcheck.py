"""`healthcheck.py PORT [HOST]`: exit status 0 when GET /livez answers 200, else 1 and the reason.

A bare socket: it runs every few seconds in every container, and importing an HTTP client costs more than asking.
"""

import socket
import sys

TIMEOUT_S = 5.0


def status_line(host: str, port: int) -> str:
    """The first line of the answer of this container's own server."""
    with socket.create_connection((host, port), TIMEOUT_S) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        with connection.makefile("rb") as answer:
            return answer.readline(256).decode("latin-1").strip()


def main() -> int:
    try:
        line = status_line(sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1", int(sys.argv[1]))
    except OSError as error:
        print(f"/livez: {error}")
        return 1
    print(line)
    return 0 if line.split(" ")[1:2] == ["200"] else 1


if __name__ == "__main__":
    sys.exit(main())
