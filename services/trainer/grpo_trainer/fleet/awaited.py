"""Wait at the start of a run until a server is up and fits."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from grpo_proto import InfrastructureError, ServiceError

from ..errors import TrainerError, UnavailableError
from .wrong_server import wrong_server

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 1.0


@dataclass(frozen=True)
class Awaited:
    """A server by its `name`, the `setting` that holds its URL, and the `command` that starts it."""

    name: str
    url: str
    setting: str
    command: str

    @property
    def phase(self) -> str:
        return f"waiting for {self.name} at {self.url}"

    async def until_fit(
        self, check: Callable[[], Awaitable[object]], *, timeout_s: float, still_waiting: Callable[[str, str], None]
    ) -> None:
        """Call `check` until the server answers it; tell `still_waiting` the phase and the reason.

        Raises UnavailableError when it does not answer within `timeout_s`, or is another kind of server, UsageError
        when it asks for another token, and what `check` raises for a server that does not fit.
        """
        loop = asyncio.get_running_loop()
        deadline, logged = loop.time() + timeout_s, False
        while True:
            try:
                await check()
                return
            except InfrastructureError as error:
                if loop.time() >= deadline:
                    raise UnavailableError(
                        f"{self.name} {self.url} did not come up within {timeout_s:g} s: {error}",
                        hint=f"start it with `{self.command}`, or change {self.setting}",
                    ) from error
                if not logged:
                    log.info("waiting for %s %s: %s", self.name, self.url, error)
                still_waiting(self.phase, error.detail.message)
                logged = True
            except ServiceError as error:
                raise self._wrong(error) from error
            await asyncio.sleep(POLL_INTERVAL_S)

    async def refuse_another(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Call `ask` once. Raises what `until_fit` raises for another kind of server; waits for none that is away."""
        try:
            await ask()
        except InfrastructureError:
            pass
        except ServiceError as error:
            raise self._wrong(error) from error

    def _wrong(self, error: ServiceError) -> TrainerError:
        return wrong_server(error, role=self.name.removeprefix("the "), url=self.url, setting=self.setting)
