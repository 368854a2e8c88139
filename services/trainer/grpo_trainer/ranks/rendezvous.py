"""Where rank 0 tells the other ranks that it has what a run needs, before anybody joins a process group.

Rank 0 alone waits for servers and verifies checkpoints, for an hour perhaps; joining has a much shorter limit. It is
the store that the process group will use as well: torchrun's agent hosts it, or else rank 0. It takes no GPU memory,
which a rollout server on the same GPU may be measuring meanwhile.
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
from .stop_signal import StopRequested

log = logging.getLogger(__name__)

KEY = "grpo_trainer/rendezvous"
POLL_S = 0.5


class Rendezvous:
    """Use as a context manager. Rank 0 opens it before it waits for anything; the others come when they `hear`.

    Alone (no RANK, or a WORLD_SIZE of 1) it does nothing. `connect_s`: how long to try to reach the store. Raises
    UnavailableError when that fails, and UsageError when the launcher has not said where the store is.
    """

    def __init__(self, *, connect_s: float):
        self.has_others = environment_world_size() > 1
        self._connect_s = connect_s
        self._told = False
        self._store: TCPStore | None = None
        if self.has_others and environment_rank() == 0:
            self._store = self._open_store()
            self._store.delete_key(KEY)  # torchrun's store outlives an attempt that failed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # An error of rank 0 ends the others by itself, but torchrun waits for them when it ends well.
        if isinstance(error, StopRequested) and not self._told:
            self._set(None)
            time.sleep(2 * POLL_S)  # the store may go with rank 0, and who misses the message takes that for a failure

    def tell(self, message: dict[str, Any]) -> None:
        """Tell the other ranks, on rank 0, that they may join now. Raises RunError when the store is gone."""
        if not self._set(message):
            raise RunError("the other ranks cannot be told to join: the store of torchrun is gone")
        self._told = True

    def hear(self, *, silence_s: float) -> dict[str, Any]:
        """What rank 0 told; for the other ranks.

        Raises RunError when rank 0 is gone or tells nothing for `silence_s`, StopRequested when it was asked to stop.
        """
        store = self._open_store()
        log.info("waiting for rank 0, which waits for the servers")
        ends = time.monotonic() + silence_s
        try:
            # Asking again and again, because a connection on which nothing moves hides that the other side is gone.
            while not store.check([KEY]):
                if time.monotonic() > ends:
                    raise RunError(f"rank 0 did not say within {silence_s:g} s that the run can begin")
                time.sleep(POLL_S)
            message: dict[str, Any] | None = json.loads(store.get(KEY))
        except DistError as error:
            raise RunError("rank 0 ended before the run began", hint="its own last lines say why") from error
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

    def _open_store(self) -> TCPStore:
        """As `env://` does later, which then shares the port that rank 0 hosts here."""
        try:
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        except (KeyError, ValueError) as error:
            raise UsageError(
                f"RANK is set, and MASTER_ADDR and MASTER_PORT do not say where rank 0 is: {error}",
                hint="start several ranks with `python -m grpo_trainer.launch`, which takes what torchrun takes",
            ) from error
        hosts = environment_rank() == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
        try:
            return TCPStore(
                host,
                port,
                is_master=hosts,
                timeout=timedelta(seconds=self._connect_s),
                wait_for_workers=False,
                multi_tenant=hosts,
            )
        except DistError as error:
            what = "cannot be listened on" if hosts else f"gave no answer within {self._connect_s:g} s"
            raise UnavailableError(
                f"{host}:{port}, where the ranks meet, {what}: {str(error).splitlines()[0]}"
            ) from error
