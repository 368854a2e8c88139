"""Play an episode with Python code: an environment, tools alone, or a class for TRL or ms-swift, in its own process.

reset → messages ─► the policy's turn ─► step → messages, reward, done ─► the next turn …
"""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grpo_proto import ConflictError, InfrastructureError, RewardScore
from grpo_proto.images import ImageError
from grpo_proto.messages.base import Message
from grpo_proto.messages.errors import DataError
from grpo_proto.messages.sessions import GeneratedTurn, GenerateTurn

from ..config.episodes import ENVIRONMENT_COLUMN, ENVIRONMENT_REWARD, EpisodesConfig
from ..data.sent_images import ImagesOfPrompts
from ..errors import RunError
from .identity import EpisodeAsked
from .pictures import MAX_PICTURE_MIB, fitted, has_pictures, without_pictures
from .played import Ending, Played, score_of
from .processes import CallFailedError, EpisodeProcess, EpisodeProcessError, LateProcessError, Nursery
from .recording import Recording, ServerLostError
from .tools import late_results

log = logging.getLogger(__name__)

LIMITS = ("session_limit", "context_length_exceeded")
CLOSE_S = 5.0
"""Limit for an environment's `close`."""


class EnvironmentPlayer:
    """Plays one episode. `log_file`: what its process prints."""

    def __init__(self, nursery: Nursery, config: EpisodesConfig, asked: EpisodeAsked, log_file: Path):
        self.nursery, self.config, self.asked, self.log_file = nursery, config, asked, log_file
        self.kind = _kind(config, asked.row.columns)
        self.transcript: list[dict[str, Any]] = []
        self.turn_rewards: dict[int, float] = {}
        self.counts = {"tools/calls": 0.0, "tools/failures": 0.0}
        self.has_tools = False
        self.unseen: GeneratedTurn | None = None
        """The last turn, where the tools have answered it and an environment has not seen it."""
        self.process: EpisodeProcess | None = None

    async def play(self, recording: Recording) -> Played:
        rewards: dict[str, RewardScore] = {}
        try:
            await self._fork()
            row, images = self.asked.row, await self._images_of_row(recording.images)
            first = await self._call("reset", row=row.columns, prompt=row.prompt, seed=self.asked.environment_seed,
                                     images=images, image_column=row.image_column)  # fmt: skip
            await recording.open()
            ending = await self._turns(recording, first)
            if ending.status == "truncated":
                await self._show_last()
            rewards = await self._rewards(ending)
        except (CallFailedError, EpisodeProcessError) as error:
            ending = Ending("failed", "infrastructure", f"the environment failed: {error}", lost="environment")
        except ServerLostError as error:
            ending = Ending("failed", "infrastructure", str(error), lost="server")
        finally:
            if self.process is not None:
                self.process.kill()
        return await recording.ended(
            ending,
            messages=self.transcript,
            rewards=rewards,
            turn_rewards=self.turn_rewards,
            metrics=self.counts if self.has_tools else None,
        )

    # --- turns ---------------------------------------------------------------------------------------------------

    async def _turns(self, recording: Recording, first: dict[str, Any]) -> Ending:
        """Play turn by turn until the environment is done or the episode meets a limit."""
        messages, tools, parent = first["messages"], first["tools"] or None, None
        self.transcript += without_pictures(messages)
        self.has_tools = tools is not None
        for _ in range(self.config.max_turns):
            messages = await _fitted(messages, recording.images)
            try:
                request = GenerateTurn(
                    messages=[Message.model_validate(message) for message in messages],
                    parent=parent,
                    tools=tools if parent is None else None,
                    max_tokens=recording.max_turn_tokens,
                )
            except ValidationError as error:
                problem = error.errors(include_url=False)[0]
                raise CallFailedError(f"its messages: {problem['loc']}: {problem['msg']}", late=False) from error
            turn = await self._sample(recording, request)
            if isinstance(turn, Ending):
                return turn
            self.transcript.append(turn.message)
            step = await self._step(turn)
            by_tools = self.config.environment and self.config.tools and turn.message.get("tool_calls")
            self.unseen = turn if by_tools else None
            messages, parent = step["messages"], turn.turn
            self.transcript += without_pictures(messages)
            if turn.finish_reason == "length":
                return Ending("truncated", "policy", f"turn {turn.turn} was cut after {len(turn.token_ids)} tokens")
            if step["done"]:
                return Ending()
        return Ending("truncated", "policy", f"max_turns {self.config.max_turns} is reached")

    async def _show_last(self) -> None:
        """Show the environment the last turn, without its calls, where only the tools have seen it.

        The policy does not hear the answer any more; the reward counts. Otherwise a policy that calls tools to the end
        would have none, and never be taught to answer.
        """
        if self.unseen is not None:
            said = {name: value for name, value in self.unseen.message.items() if name != "tool_calls"}
            reward = await self._call("show", message={**said, "content": said.get("content") or ""})
            self._note(self.unseen.turn, reward)

    async def _sample(self, recording: Recording, request: GenerateTurn) -> GeneratedTurn | Ending:
        """Return the next turn, or how the episode has ended. Raises ServerLostError, CallFailedError."""
        try:
            return await recording.session.generate(request, retry_for_s=recording.place.retry_for_s)
        except (InfrastructureError, ConflictError) as error:
            raise ServerLostError(str(error)) from error
        except DataError as error:
            kind = error.detail.type
            # Images beyond the server's limit are a full context, unless nothing has been sampled before them.
            if kind in LIMITS or (kind == "too_many_images" and request.parent is not None):
                return Ending("truncated", "policy", error.detail.message)
            if error.status == 410:
                return Ending("failed", "infrastructure", error.detail.message)  # the record knows why
            if kind in ("invalid_messages", "too_many_images"):
                raise CallFailedError(f"its messages cannot be rendered: {error.detail.message}", late=False) from error
            raise

    async def _step(self, turn: GeneratedTurn) -> dict[str, Any]:
        """Answer the policy, and note the reward of its turn.

        A tool that had to be killed is an observation where it holds no state.
        """
        message, calls = turn.message, turn.message.get("tool_calls") or []
        choice = {"finish_reason": turn.finish_reason, "token_ids": turn.token_ids}
        try:
            step: dict[str, Any] = await self._call("step", calls=len(calls), message=message, choice=choice)
        except LateProcessError:
            if not calls or self.config.pays_by_steps or self.config.environment_factory:
                raise
            await self._fork()
            why = f"the call did not return within {self.config.call_timeout_s:g} s, and was ended"
            step = {"messages": late_results(message, why), "reward": None, "done": False,
                    "tool_calls": len(calls), "tool_failures": len(calls)}  # fmt: skip
        self.counts["tools/calls"] += step.get("tool_calls", 0)
        self.counts["tools/failures"] += step.get("tool_failures", 0)
        self._note(turn.turn, step["reward"])
        return step

    def _note(self, turn: int, reward: float | None) -> None:
        if reward is not None:
            self.turn_rewards[turn] = reward

    async def _rewards(self, ending: Ending) -> dict[str, RewardScore]:
        """Return the episode's rewards, one without a score with how the episode ended; closes the environment."""
        paid = await self._call("finish", calls=1 + len(self.config.reward_funcs))
        if self.turn_rewards or (self.config.pays_by_steps and ENVIRONMENT_REWARD not in self.config.optional_rewards):
            paid[ENVIRONMENT_REWARD] = {"score": sum(self.turn_rewards.values()) if self.turn_rewards else None}
        rewards = {
            name: score_of(**({"detail": ending.detail} if fields["score"] is None else {}) | fields)
            for name, fields in paid.items()
        }
        try:
            if self.process is not None:
                await self.process.call("close", wait_s=CLOSE_S, timeout_s=CLOSE_S)
        except (CallFailedError, EpisodeProcessError) as error:
            log.warning("episode %s: its environment did not close: %s", self.asked.id, error)
        return rewards

    # --- images ---------------------------------------------------------------------------------------------------

    async def _images_of_row(self, of_policy: ImagesOfPrompts) -> list[str]:
        """Raises RunError for images that cannot be read any more, and for more than a call can hold."""
        if not self.asked.row.images:
            return []
        images = await asyncio.to_thread(of_policy.encoded, self.asked.row)
        if (size := sum(map(len, images))) > MAX_PICTURE_MIB * 2**20:
            raise RunError(
                f"the images of row {self.asked.row.index + 1} have {size / 2**20:.1f} MiB in base64; an episode can "
                f"show {MAX_PICTURE_MIB} MiB of a row",
                hint="make larger ones smaller by data.max_image_pixels, or give other files",
            )
        return images

    # --- process -------------------------------------------------------------------------------------------------

    async def _fork(self) -> None:
        self.process = await self.nursery.fork(self.kind, seed=self.asked.environment_seed, log_file=self.log_file)

    async def _call(self, name: str, *, calls: int = 1, **arguments: Any) -> Any:
        """Raises CallFailedError, EpisodeProcessError. `calls`: how many it may make, one after the other."""
        if self.process is None:
            raise RuntimeError("the process has not been forked")
        limit_s = self.config.call_timeout_s
        wait_s = max(limit_s, min(limit_s * calls, self.config.idle_s))
        if name == "step":
            arguments["budget_s"] = wait_s
        return await self.process.call(name, wait_s=wait_s, timeout_s=limit_s, **arguments)


def _kind(config: EpisodesConfig, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return what plays a row. Where there are several classes, the row was checked to name one when it was read."""
    factories, by_name = config.factories, bool(config.factories) and "" not in config.factories
    factory = factories[columns[ENVIRONMENT_COLUMN] if by_name else ""] if factories else None
    return {
        "environment": config.environment, "scheduler": config.multi_turn_scheduler, "factory": factory,
        "by_name": by_name, "tools": list(config.tools), "rewards": list(config.reward_funcs),
        "max_turns": config.max_turns,
    }  # fmt: skip


async def _fitted(messages: list[dict[str, Any]], of_policy: ImagesOfPrompts) -> list[dict[str, Any]]:
    """The messages with their images as large as they may be. Raises CallFailedError for what cannot be shown."""
    if not has_pictures(messages):
        return messages
    if of_policy.token_id is None:
        raise CallFailedError(
            "its messages show an image, and images of this model are not trained on: docs/model-families.md has "
            "those that are",
            late=False,
        )
    try:
        return await asyncio.to_thread(fitted, messages, of_policy.fitted)
    except ImageError as error:
        raise CallFailedError(f"its messages show an image that cannot be used: {error}", late=False) from error
