"""The runner against vLLM's serving objects, which sample what a script says: whole episodes in one process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import APIRouter, FastAPI

from grpo_proto import Sampling
from grpo_proto.client.sessions import SessionsClient
from grpo_trainer.config.episodes import EpisodesConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.episodes.identity import EpisodeAsked
from grpo_trainer.episodes.played import Played
from grpo_trainer.episodes.recording import Place
from grpo_trainer.episodes.runner import EpisodeRunner
from tests.rollout.sessions.families import FAMILIES
from tests.rollout.sessions.serving import Served, serve

FAMILY = next(name for name in FAMILIES if FAMILIES[name].tool_parser == "hermes")
QUESTION = [{"role": "user", "content": "What is 37*52?"}]
Call = tuple[str, dict[str, Any]]


class Policy:
    """Plays one episode against `served`, which samples what `says` was told."""

    def __init__(self, served: Served, runner: EpisodeRunner, client: SessionsClient):
        self.served, self.runner, self.client = served, runner, client
        self.num_said = 0

    def says(self, *calls: Call, text: str = "", thought: str = "") -> None:
        family = FAMILIES[FAMILY]
        written = family.says(text, thought, list(calls)) + str(family.end)
        ids = self.served.tokenizer.encode(written, add_special_tokens=False)
        self.served.next(ids, "stop", ids[-1])
        self.num_said += len(ids)

    def place(self, max_tokens: int = 4000) -> Place:
        return Place(self.client, Sampling(max_tokens=max_tokens), None, None, retry_for_s=0.0)

    async def plays(self, prompt: Any = QUESTION, *, max_tokens: int = 4000, **row: Any) -> Played:
        asked = EpisodeAsked(0, 0, PromptRow(0, [], prompt, row), seed=1)
        found = await self.runner.run_episode(asked, self.place(max_tokens))
        assert not self.served.script.answers
        assert found.stats is not None, found.ending
        assert found.stats.sampled == found.episode.num_sampled
        return found


@asynccontextmanager
async def policy(folder: Path, tmp_path: Path, **config: Any) -> AsyncIterator[Policy]:
    from grpo_rollout.sessions.routes import add_session_routes

    served = serve(FAMILY, folder)
    app, router = FastAPI(), APIRouter()
    add_session_routes(router, lambda: served.parts)
    app.include_router(router)
    transport = httpx.ASGITransport(app)
    async with (
        SessionsClient("http://localhost", transport=transport) as client,
        EpisodeRunner(EpisodesConfig.model_validate(config), run="test", log_dir=tmp_path) as runner,
    ):
        yield Policy(served, runner, client)
