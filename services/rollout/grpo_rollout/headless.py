"""An engine over several machines, on one that is not the first: vLLM's workers there, without a server.

The first machine has the server, the routes and the weight state; its workers and these take a push together. vLLM's
workers do not notice when the first machine is gone: they would wait for its next step for ever, and keep their GPUs.
"""

import os
import signal
import socket
import sys
import threading
import time
from argparse import Namespace

from vllm.entrypoints.cli.serve import run_headless

RECONNECT_S = 1.0
SILENCE_S, PROBE_INTERVAL_S, MAX_LOST_PROBES = 15, 5, 3
"""A machine that lost its power says nothing: the kernel asks after so long, so often, and gives up."""


def run_workers(args: Namespace) -> int:
    """Run the workers until one ends or the first machine is gone (1), or a signal comes (0, by SystemExit).

    An engine that has lost a part starts again as a whole.
    """
    first = FirstMachine(args.master_addr, args.master_port)
    threading.Thread(target=first.watch, name="watch-first-machine", daemon=True).start()
    args.api_server_count = 0
    try:
        run_headless(args)
    except SystemExit:
        if not first.is_gone:
            raise
    what = f"the first machine, {args.master_addr}, is gone" if first.is_gone else "the workers of this machine ended"
    print(f"error: {what}; the log above and that of the first machine say more", file=sys.stderr)
    return 1


class FirstMachine:
    """Holds a connection to the store at which the workers met: its other end is in a worker of the first machine."""

    def __init__(self, host: str, port: int):
        self._address = (host, port)
        self.is_gone = False

    def watch(self) -> None:
        """Wait, in a thread, until the first machine is gone. How long workers wait for its start is up to vLLM."""
        with self._connected() as connection:
            try:
                while connection.recv(1):
                    pass
            except OSError:
                pass
        self.is_gone = True
        os.kill(os.getpid(), signal.SIGTERM)  # vLLM ends its workers

    def _connected(self) -> socket.socket:
        while True:
            try:
                connection = socket.create_connection(self._address, timeout=10.0)
            except OSError:
                time.sleep(RECONNECT_S)
                continue
            connection.settimeout(None)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_INTERVAL_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, MAX_LOST_PROBES)
            return connection
