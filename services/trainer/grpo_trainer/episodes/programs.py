"""Play an episode with a program that speaks OpenAI's or Anthropic's API and knows nothing of us.

It gets the session's URLs and its key by environment variables, and the row as JSON on stdin and in the file
`GRPO_ROW`. Exit status 0 is a completed episode. Its last line on stdout may be
`{"rewards": {"name": number or null}}`. It leads a process group of its own and ends with the episode.

Waits for: its end, and that of its session, whose clock stands still while weights load; then `call_timeout_s` more, in
which a program that met a limit works out its rewards and ends.
"""

import asyncio
import json
import logging
import math
import os
from pathlib import Path
from typing import Any

from grpo_proto import ConflictError, InfrastructureError, RewardScore
from grpo_proto.messages.errors import DataError
from grpo_proto.messages.sessions import Status

from ..config.episodes import EpisodesConfig
from ..data.sent_images import ImagesOfPrompts
from .identity import EpisodeAsked
from .pictures import row_with_images
from .played import Ending, Played, score_of
from .processes import EpisodeProcess, EpisodeProcessError, Exit, Nursery
from .recording import Recording, ServerLostError

log = logging.getLogger(__name__)

ALWAYS = ("PATH", "HOME", "LANG")
LOOK_S = 15.0
"""Seconds between two looks whether the session of a running program has ended."""


class ProgramPlayer:
    """Plays one episode. `log_file`: what the program prints; the row lies beside it."""

    def __init__(self, nursery: Nursery, config: EpisodesConfig, asked: EpisodeAsked, log_file: Path):
        self.nursery, self.config, self.asked, self.log_file = nursery, config, asked, log_file
        self.row_file = log_file.absolute().with_suffix(".row.json")

    async def play(self, recording: Recording) -> Played:
        rewards: dict[str, RewardScore] = {}
        killed = False
        try:
            await recording.open()
            await asyncio.to_thread(self._write_row, recording.images)
            async with await self._start(recording) as program:
                exited = await self._wait(program, recording)
            ending, rewards = _judged(exited, self.config.call_timeout_s)
            killed = exited is None
        except EpisodeProcessError as error:
            ending = Ending("failed", "program", str(error), lost="program")
        except ServerLostError as error:
            ending = Ending("failed", "infrastructure", str(error), lost="server")
        finally:
            self.row_file.unlink(missing_ok=True)
        found = await recording.ended(ending, rewards=rewards)
        if killed and found.ending.status != "failed":
            log.warning("episode %s: %s", self.asked.id, ending.detail)
            none = RewardScore(score=None, status="unscorable", detail=ending.detail)
            for name in self.config.reward_weights:
                found.episode.rewards.setdefault(name, none)
        return found

    def _write_row(self, of_policy: ImagesOfPrompts) -> None:
        self.row_file.parent.mkdir(parents=True, exist_ok=True)
        row = self.asked.row
        columns, _ = row_with_images(row.columns, row.prompt, of_policy.encoded(row), row.image_column)
        self.row_file.write_text(json.dumps(columns, default=str), encoding="utf-8")

    async def _start(self, recording: Recording) -> EpisodeProcess:
        opened = recording.session.opened
        env = {name: os.environ[name] for name in (*ALWAYS, *self.config.env) if name in os.environ}
        env |= {
            "OPENAI_BASE_URL": opened.openai_base_url,
            "OPENAI_API_KEY": opened.api_key,
            "ANTHROPIC_BASE_URL": opened.anthropic_base_url,
            "ANTHROPIC_API_KEY": opened.api_key,
            "GRPO_ROW": str(self.row_file),
            "GRPO_SEED": str(self.asked.environment_seed),
        }
        return await self.nursery.program(self.config.agent, env=env, stdin=self.row_file, log_file=self.log_file)

    async def _wait(self, program: EpisodeProcess, recording: Recording) -> Exit | None:
        """Wait for the program's end; None when its session ended and it did not. Raises ServerLostError."""
        while True:
            await asyncio.wait({program.exited}, timeout=LOOK_S)
            if program.exited.done():
                return program.exited.result()
            status = await _status(recording)
            if status == "failed":
                return None
            if status is not None:
                await asyncio.wait({program.exited}, timeout=self.config.call_timeout_s)
                return program.exited.result() if program.exited.done() else None


async def _status(recording: Recording) -> Status | None:
    """Return how the session has ended; None while it goes on.

    Raises ServerLostError when the server cannot be asked.
    """
    try:
        return (await recording.session.trajectory(retry_for_s=recording.place.retry_for_s)).status
    except (InfrastructureError, ConflictError) as error:
        raise ServerLostError(str(error)) from error
    except DataError as error:
        if error.status == 410:
            raise ServerLostError(str(error)) from error
        raise


def _judged(exited: Exit | None, call_timeout_s: float) -> tuple[Ending, dict[str, RewardScore]]:
    """How a program's episode has ended, and its rewards. The session's own end, if it has one, outranks this."""
    if exited is None:
        detail = (
            f"the program went on for more than {call_timeout_s:g} s after its session had ended, and was killed "
            "without its rewards; see episodes.call_timeout_s"
        )
        return Ending("failed", "program", detail), {}
    try:
        rewards = {name: score_of(value) for name, value in rewards_of(exited.last_line).items()}
    except ValueError as error:
        return Ending("failed", "program", f"its last line: {error}", lost="program"), {}
    if exited.status is None:
        return Ending("failed", "infrastructure", str(exited), lost="program"), {}
    if exited.status:
        return Ending("failed", "program", str(exited), lost="program"), rewards
    return Ending(), rewards


def rewards_of(line: str) -> dict[str, float | None]:
    """The rewards in the last line of a program; none in a line of another kind.

    Raises ValueError for a line that means to have rewards and names something else.
    """
    try:
        found: Any = json.loads(line)
    except ValueError:
        return {}
    if not isinstance(found, dict) or "rewards" not in found:
        return {}
    rewards = found["rewards"]
    if not isinstance(rewards, dict):
        raise ValueError(f"rewards is {type(rewards).__name__}; write {{'rewards': {{'name': number or null}}}}")
    for name, value in rewards.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if value is not None and not is_number:
            raise ValueError(f"the reward {name} is {value!r:.100}, neither a finite number nor null")
    return {name: None if value is None else float(value) for name, value in rewards.items()}
