"""Run vLLM's workers on a further machine of a multi-node engine, without a server.

The first machine runs the server, the routes and the weight state; a push goes to the workers of all machines at once.
vLLM's workers do not notice when the first machine is gone: they would wait for its next step forever and keep their
GPUs.
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
"""TCP keepalive, for a machine that lost its power: probe after SILENCE_S, then every PROBE_INTERVAL_S, and give up
after MAX_LOST_PROBES."""


def run_workers(args: Namespace) -> int:
    """Run the workers until a worker ends or the first machine is gone (1), or a signal comes (0, by SystemExit).

    An engine that has lost a machine must be restarted as a whole.
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
    print(f"error: {what}; see the log above and the log of the first machine", file=sys.stderr)
    return 1


class FirstMachine:
    """Hold a connection to the rendezvous store of the workers; a worker of the first machine has the other end."""

    def __init__(self, host: str, port: int):
        self._address = (host, port)
        self.is_gone = False

    def watch(self) -> None:
        """Wait, in a thread, until the first machine is gone. vLLM bounds how long workers wait for its start."""
        with self._connected() as connection:
            try:
                while connection.recv(1):
                    pass
            except OSError:
                pass
        self.is_gone = True
        os.kill(os.getpid(), signal.SIGTERM)  # has vLLM end its workers

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
