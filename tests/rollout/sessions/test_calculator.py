"""One game of the calculator, by the environment, the agent and the class for TRL, on vLLM's parsers and a script.

The same tokens are sampled whoever plays, and each of them stands in one segment.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
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
from tests.rollout.sessions.marks import IN_PROCESS
from tests.rollout.sessions.serving import Served, serve

pytestmark = IN_PROCESS

EXAMPLES = Path(__file__).parents[3] / "examples"
FAMILY = next(name for name in FAMILIES if FAMILIES[name].tool_parser == "hermes")
CALL = {"expr": "37*52"}
WAYS: dict[str, dict[str, Any]] = {
    "environment": {
        "environment": f"{EXAMPLES}/calculator/game.py:Game", "tools": [f"{EXAMPLES}/calculator/game.py:calc"],
    },
    "agent": {"agent": [sys.executable, f"{EXAMPLES}/agent/agent.py"], "reward_weights": {"right": 1.0}},
    "class for TRL": {"environment_factory": f"{EXAMPLES}/agent/trl_game.py:Calculator"},
}  # fmt: skip


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[Served, SessionsClient]]:
    """The sessions' routes on a port, for a program that is another process."""
    from grpo_rollout.sessions.routes import add_session_routes

    served = serve(FAMILY, folder)
    app, router = FastAPI(), APIRouter()
    add_session_routes(router, lambda: served.parts)
    app.include_router(router)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off"))
    running = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(30):
            while not server.started:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with SessionsClient(f"http://127.0.0.1:{port}") as client:
            yield served, client
    finally:
        server.should_exit = True
        await running


async def play(served: Served, client: SessionsClient, way: str, folder: Path, *said: Any, **config: Any) -> Played:
    """Play with a policy that says each of `said`: the arguments of a call, or a text."""
    family = FAMILIES[FAMILY]
    for one in said:
        calls = [("calc", one)] if isinstance(one, dict) else []
        text = family.says("" if calls else one, "Hm.", calls) + str(family.end)
        ids = served.tokenizer.encode(text, add_special_tokens=False)
        served.next(ids, "stop", ids[-1])
    settings = EpisodesConfig.model_validate(WAYS[way] | config)
    asked = EpisodeAsked(0, 0, PromptRow(0, [], "", {"a": 37, "b": 52}), seed=1)
    place = Place(client, Sampling(max_tokens=4000), None, None, retry_for_s=0.0)
    async with EpisodeRunner(settings, run=f"{way} {len(said)}", log_dir=folder) as runner:
        found = await runner.run_episode(asked, place)
    assert not served.script.answers
    assert found.stats is not None
    assert found.stats.sampled == found.episode.num_sampled
    return found


@pytest.mark.parametrize("way", WAYS)
async def test_the_game_is_played(way: str, tmp_path: Path):
    async with serving(tmp_path / "model") as (served, client):
        found = await play(served, client, way, tmp_path, CALL, "1924")
    episode = found.episode
    assert (episode.status, len(episode.segments), len(list(episode.turns))) == ("completed", 1, 2)
    asked, called, result, answered = episode.transcript
    assert (asked["content"], result["content"], answered["content"].strip()) == ("What is 37*52?", "1924", "1924")
    assert [call["function"]["name"] for call in called["tool_calls"]] == ["calc"]
    scores = {name: reward.score for name, reward in episode.rewards.items()}
    assert scores == {"environment": {"environment": 1.0}, "agent": {"right": 1.0}, "class for TRL": {}}[way]


async def test_what_the_policy_does_wrong_does_not_crash_the_agent(tmp_path: Path):
    async with serving(tmp_path / "model") as (served, client):
        wrong = await play(served, client, "agent", tmp_path, {"x": 1}, CALL, "1925")
        endless = await play(served, client, "agent", tmp_path, CALL, CALL, CALL, max_turns=3)
    assert wrong.episode.transcript[2]["content"] == "error"
    assert (endless.episode.status, endless.episode.cause) == ("truncated", "policy")
    for found in (wrong, endless):
        assert found.episode.rewards["right"].score == 0.0
