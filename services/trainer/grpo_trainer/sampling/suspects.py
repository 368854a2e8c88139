"""Prompts that kill servers are found out, named and dropped; a server's death alone says nothing of a prompt.

What was in flight at a death is sent again as it is: most deaths have other causes. What was in flight at a second
death is suspect: its prompts go one at a time, each alone on a server, while the other servers sample on. A prompt that
is alone on a server when it dies is dropped. One that was in flight at two deaths by chance comes back sampled.
"""

import asyncio
import logging

from grpo_proto import InfrastructureError, ServiceError

from ..data.prompt_row import PromptRow
from ..errors import RunError
from ..fleet.fleet import MAX_MISSED_PROBES, Replica

log = logging.getLogger(__name__)

DEATHS_OF_A_JOB = 2
"""From so many on, the prompts of a job are suspects."""
MAX_DROPPED_IN_A_ROW = 5
"""With so many, and nothing sampled in between, the servers are at fault and not the prompts."""
SHOWN_CHARS = 120


class Suspects:
    """What the sampler knows of prompts and deaths. `turn`: held while a prompt is tried alone."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self._killers: dict[tuple[int, ...], str] = {}
        self._dropped_in_a_row = 0

    def sampled(self) -> None:
        """Note that a server has lived through a request."""
        self._dropped_in_a_row = 0

    def convict(self, row: PromptRow, death: str) -> None:
        """Drop a prompt that was alone on a server at its `death`, now and whenever it comes again.

        Raises RunError as `drops` does.
        """
        self._killers[tuple(row.token_ids)] = death
        self.drops(row)

    def drops(self, row: PromptRow) -> bool:
        """Whether this prompt kills servers: it is not to be sampled, and its name is logged.

        Raises RunError when so many are dropped in a row that the servers must die of something else.
        """
        death = self._killers.get(tuple(row.token_ids))
        if death is None:
            return False
        log.error(
            "dropped a prompt that kills rollout servers, %s; alone on a server it ended in %s", name_of(row), death
        )
        self._dropped_in_a_row += 1
        if self._dropped_in_a_row >= MAX_DROPPED_IN_A_ROW:
            raise RunError(
                f"{self._dropped_in_a_row} prompts in a row have each killed a rollout server, the last one "
                f"{name_of(row)}: {death}",
                hint="so many look like a fault of the servers: see their logs, then start again with --resume",
            )
        return True


async def has_died(replica: Replica, server_id: str | None, error: InfrastructureError) -> bool:
    """Whether the server process `server_id` has died with the request that ended in `error`.

    Asks the server: a connection may break by itself, and a request is given up as well when its server has failed a
    push or another request. A server that stands still counts once the watcher has lost it. A request that never
    reached the server had no part in its end.
    """
    if error.detail.type == "engine_died":
        return True
    if error.detail.type not in ("broken_off", "lost", "unexpected_answer"):  # the last is a proxy's
        return False
    if replica.missed_probes >= MAX_MISSED_PROBES:
        return True
    try:
        health, info = await replica.rollouts.livez(), await replica.rollouts.info()
    except ServiceError as silence:
        return silence.detail.type != "no_answer"
    return not health.ok or info.server_id != server_id


def name_of(row: PromptRow) -> str:
    """The row's number, from 1, its dataset, and how its prompt, or the last of its messages, begins."""
    text = row.prompt if isinstance(row.prompt, str) else str(row.prompt[-1].get("content"))
    dataset = f" of {row.dataset}" if row.dataset else ""
    return f"row {row.index + 1}{dataset} ({len(row.token_ids)} tokens: {text[:SHOWN_CHARS]!r})"
