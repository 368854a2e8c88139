"""The rendezvous of the ranks: hold the others until rank 0 announces the start, before they join a process group.

Rank 0 alone waits for servers and verifies checkpoints, perhaps for an hour; joining has a much shorter timeout. The
rendezvous uses the store of the later process group, hosted by torchrun's agent or else by rank 0: on the listener of
`one_machine.py`, or at the address that the launcher names, which listens on every interface. It takes no GPU
memory, which a rollout server on the same GPU may be measuring meanwhile.
"""

import json
import logging
import os
import time
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from torch.distributed import DistError, TCPStore

from ..errors import RunError, UnavailableError, UsageError
from .launch import environment_rank, environment_world_size
from .one_machine import LISTENER_VARIABLE
from .stop_signal import StopRequested

log = logging.getLogger(__name__)

KEY = "grpo_trainer/rendezvous"
POLL_S = 0.5


class Rendezvous:
    """Use as a context manager. Rank 0 opens the store before it waits for anything; others connect to wait.

    For a single rank (no RANK, or a WORLD_SIZE of 1) it does nothing. `connect_s`: the timeout for reaching the store.
    Raises UnavailableError when that fails, and UsageError when the launcher has not set the store's address.
    """

    def __init__(self, *, connect_s: float):
        self.has_others = environment_world_size() > 1
        self._connect_s = connect_s
        self._announced = False
        self._store: TCPStore | None = None
        if self.has_others and environment_rank() == 0:
            self._store = self._open_store(hosts=os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True))
            self._store.delete_key(KEY)  # torchrun's store outlives an attempt that failed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # Announce a stop: torchrun waits for the other ranks when rank 0 exits with 0. After an error it ends them.
        if isinstance(error, StopRequested) and not self._announced:
            self._set(None)
            # Let the others read it first: the store may end with rank 0, and they report a lost store as an error.
            time.sleep(2 * POLL_S)

    def announce(self, message: dict[str, Any]) -> None:
        """Announce the start to the other ranks, with `message`; on rank 0. Raises RunError when the store is gone."""
        if not self._set(message):
            raise RunError("the start cannot be announced to the other ranks: the store of torchrun is gone")
        self._announced = True

    def wait_for_start(self, *, silence_s: float) -> dict[str, Any]:
        """Wait until rank 0 announces the start, and return its message; on the other ranks.

        Raises RunError when rank 0 is gone or announces nothing within `silence_s`, StopRequested when it was stopped.
        """
        store = self.connect()
        log.info("waiting for rank 0, which waits for the servers")
        give_up_s = time.monotonic() + silence_s
        try:
            # Poll: a blocking wait on an idle connection would not notice that the other side is gone.
            while not store.check([KEY]):
                if time.monotonic() > give_up_s:
                    raise RunError(f"rank 0 did not announce the start within {silence_s:g} s")
                time.sleep(POLL_S)
            message: dict[str, Any] | None = json.loads(store.get(KEY))
        except DistError as error:
            raise RunError("rank 0 ended before the run began", hint="see the last lines of rank 0's log") from error
        if message is None:
            raise StopRequested
        return message

    def _set(self, message: dict[str, Any] | None) -> bool:
        if self._store is not None:
            try:
                self._store.set(KEY, json.dumps(message))
            except DistError:
                return False
        return True

    def connect(self) -> TCPStore:
        """Open another connection to the store. Raises what the class raises."""
        return self._open_store(hosts=False)

    def _open_store(self, *, hosts: bool) -> TCPStore:
        """Open the store as `env://` does later, which then shares the port that rank 0 hosts here."""
        try:
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        except (KeyError, ValueError) as error:
            raise UsageError(
                f"RANK is set, but MASTER_ADDR and MASTER_PORT do not give the address of rank 0: {error}",
                hint="start several ranks with `python -m grpo_trainer.launch`, which takes torchrun's arguments",
            ) from error
        # Taken out: the file is given to the store, which closes it.
        listener = os.environ.pop(LISTENER_VARIABLE, None) if hosts else None
        try:
            return TCPStore(
                host,
                port,
                is_master=hosts,
                timeout=timedelta(seconds=self._connect_s),
                wait_for_workers=False,
                multi_tenant=hosts,
                master_listen_fd=int(listener) if listener else None,
            )
        except DistError as error:
            what = "cannot be listened on" if hosts else f"gave no answer within {self._connect_s:g} s"
            raise UnavailableError(
                f"{host}:{port}, the rendezvous of the ranks, {what}: {str(error).splitlines()[0]}"
            ) from error
