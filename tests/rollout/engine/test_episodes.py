"""Whole episodes: the trainer's runner, users' files in processes of their own, and a real rollout server."""

import asyncio
import string
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from grpo_proto import Sampling
from grpo_proto.client.sessions import SessionsClient
from grpo_trainer.config.episodes import EpisodesConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.episodes import programs
from grpo_trainer.episodes.identity import EpisodeAsked
from grpo_trainer.episodes.played import Played
from grpo_trainer.episodes.recording import Place
from grpo_trainer.episodes.runner import EpisodeRunner
from tests.rollout.conftest import Server
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.xdist_group("engine")]

GAMES = Path(__file__).parents[2] / "trainer/episodes/games.py"
SWIFT_GAMES = GAMES.with_name("swift_games.py")
ENVIRONMENT = {"environment": f"{GAMES}:Counting"}


def asked(index: int = 0, *, prompt: Any = "", attempt: int = 0, **row: Any) -> EpisodeAsked:
    return EpisodeAsked(3, index, PromptRow(0, [], prompt, row), seed=11, attempt=attempt)


class Playing:
    def __init__(self, runner: EpisodeRunner, place: Place):
        self.runner, self.place = runner, place

    async def play(self, one: EpisodeAsked) -> Played:
        """Play, and check that each sampled token is accounted for."""
        found = await self.runner.run_episode(one, self.place)
        if found.stats is not None:
            assert found.stats.sampled == found.episode.num_sampled
        return found


@asynccontextmanager
async def playing(server: Server, tmp_path: Path, *, max_tokens: int = 200, **config: Any) -> AsyncIterator[Playing]:
    episodes = EpisodesConfig.model_validate({"max_turn_tokens": 60} | config)
    async with (
        SessionsClient(server.url) as client,
        EpisodeRunner(episodes, run="test", log_dir=tmp_path / "agents") as runner,
    ):
        sampling = Sampling(max_tokens=max_tokens, stop=list(string.ascii_letters))
        yield Playing(runner, Place(client, sampling, None, None, retry_for_s=2.0))


async def test_an_environment_plays_turn_by_turn_and_again_the_same(fresh: Server, tmp_path: Path):
    async with playing(fresh, tmp_path, **ENVIRONMENT) as game:
        first, sibling, again = await asyncio.gather(
            game.play(asked(0, steps=3)), game.play(asked(1, steps=3)), game.play(asked(2, steps=3))
        )
        repeated = await game.play(asked(0, steps=3, attempt=1))
    episode = first.episode
    (segment,) = episode.segments
    assert (episode.status, episode.cause, first.ending.lost) == ("completed", None, None)
    assert [turn.reward for turn in segment.turns] == [0.25, 0.25, 0.25]
    assert [turn.finish_reason for turn in segment.turns] == ["stop"] * 3
    assert episode.rewards["environment"].score == 0.75
    assert [message["role"] for message in episode.transcript] == ["user", "assistant"] * 3
    assert [message["content"] for message in episode.transcript[1::2]] == [turn.text for turn in segment.turns]
    assert segment.logprobs is not None
    assert len(segment.logprobs) == episode.num_sampled
    assert sibling.episode.transcript[0] == again.episode.transcript[0] == episode.transcript[0]
    assert sibling.episode.sampled_token_ids != episode.sampled_token_ids
    assert (repeated.episode.segments, repeated.episode.attempt) == (episode.segments, 1)


async def test_classes_written_for_ms_swift_play_on_a_real_server(fresh: Server, tmp_path: Path):
    row = {"number": "no such text", "solution": "no such text"}
    async with playing(fresh, tmp_path, environment=f"{SWIFT_GAMES}:Guess", max_turns=3) as game:
        guessed = await game.play(asked(**row))
    async with playing(fresh, tmp_path, multi_turn_scheduler=f"{SWIFT_GAMES}:Tips", max_turns=3) as game:
        tipped = await game.play(asked(prompt=[{"role": "user", "content": "Hi"}], **row))
    for found, status in ((guessed, "truncated"), (tipped, "completed")):
        (segment,) = found.episode.segments
        assert (found.episode.status, len(segment.turns)) == (status, 3)
    assert [turn.reward for turn in guessed.episode.turns] == [-0.25] * 3
    assert guessed.episode.rewards["environment"].score == -0.75
    assert "environment" not in tipped.episode.rewards  # nothing says a total


@pytest.mark.parametrize(
    ("config", "row", "status", "detail", "score"),
    [
        ({"max_turns": 2}, {"steps": 9}, "truncated", "max_turns 2 is reached", 0.5),
        ({"max_tokens": 1}, {"steps": 9}, "truncated", None, 0.25),
        ({"max_context_tokens": 60}, {"steps": 99, "scores": False}, "truncated", None, None),
        (
            {"deadline_s": 3, "call_timeout_s": 3},
            {"steps": 99, "waits_at": [*range(2, 99)], "waits_s": 0.6},
            "truncated",
            "deadline_s 3 is over",
            None,
        ),
    ],
)
async def test_a_limit_is_the_policys_doing_and_what_was_won_counts(
    fresh: Server,
    tmp_path: Path,
    config: dict[str, Any],
    row: dict[str, Any],
    status: str,
    detail: str | None,
    score: float | None,
):
    async with playing(fresh, tmp_path, **ENVIRONMENT | config) as game:
        found = await game.play(asked(**row))
    assert (found.episode.status, found.episode.cause) == (status, "policy")
    assert detail is None or found.ending.detail == detail
    if "deadline_s" not in config:
        assert found.episode.rewards["environment"].score == score
    assert found.episode.rewards["environment"].status in ("ok", "unscorable")
    if score is None and found.episode.rewards["environment"].score is None:
        assert str(found.ending.detail) in str(found.episode.rewards["environment"].detail), "why it has no score"


async def test_the_length_of_a_turn_ends_an_episode_after_the_environment_has_seen_it(fresh: Server, tmp_path: Path):
    async with playing(fresh, tmp_path, max_turn_tokens=8, **ENVIRONMENT) as game:
        game.place = replace(game.place, sampling=Sampling(max_tokens=200))
        found = await game.play(asked(steps=3))
    assert (found.episode.status, found.episode.cause, found.ending.detail) == (
        "truncated", "policy", "turn 0 was cut after 8 tokens",
    )  # fmt: skip
    assert [turn.reward for turn in found.episode.turns] == [0.25]


async def test_an_environment_that_dies_is_lost_with_its_tokens_counted_and_no_score(fresh: Server, tmp_path: Path):
    async with playing(fresh, tmp_path, **ENVIRONMENT) as game:
        found = await game.play(asked(steps=3, dies_at=2))
    assert (found.episode.status, found.episode.cause, found.ending.lost) == (
        "failed", "infrastructure", "environment",
    )  # fmt: skip
    assert "status 9" in str(found.ending.detail)
    assert found.episode.rewards["environment"].status == "error"
    assert len(list(found.episode.turns)) == 2


async def test_a_server_that_is_away_and_a_cancelled_episode_leave_nothing(fresh: Server, tmp_path: Path):
    async with playing(fresh, tmp_path, **ENVIRONMENT) as game:
        async with SessionsClient("http://127.0.0.1:1") as away:
            lost = await Playing(game.runner, replace(game.place, server=away, retry_for_s=0.1)).play(asked(steps=1))
        assert (lost.episode.status, lost.episode.segments, lost.ending.lost) == ("failed", [], "server")
        task = asyncio.create_task(game.play(asked(steps=9, waits_at=[1], waits_s=30)))
        async with asyncio.timeout(30):
            while not await open_sessions(fresh):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait({task})
        async with asyncio.timeout(30):
            while await open_sessions(fresh) or game.runner.nursery._living:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


AGENT = {"agent": [sys.executable, str(GAMES.with_name("agent.py"))], "reward_weights": {"won": 1.0}}


async def test_a_program_is_played_as_it_is_and_never_gets_the_servers_token(
    fresh: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GRPO_API_TOKEN", "a-secret")
    left = tmp_path / "left"
    async with playing(fresh, tmp_path, **AGENT) as game:
        found = await game.play(asked(turns=2, leaves=str(left)))
    episode = found.episode
    (segment,) = episode.segments
    assert (episode.status, episode.cause, len(segment.turns)) == ("completed", None, 2)
    assert {name: score.score for name, score in episode.rewards.items()} == {"won": 0.5, "tidy": None}
    assert [turn.label for turn in segment.turns] == ["mine", "mine"]
    assert [message["role"] for message in episode.transcript] == ["user", "assistant"] * 2
    printed = (tmp_path / "agents" / "test-3-0.log").read_text()
    assert "OPENAI_API_KEY OPENAI_BASE_URL PATH" in printed
    assert "GRPO_API_TOKEN" not in printed
    assert [path.name for path in (tmp_path / "agents").iterdir()] == ["test-3-0.log"]
    async with asyncio.timeout(PATIENCE_S):
        while psutil.pid_exists(int(left.read_text())):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("config", "row", "expected"),
    [
        ({}, {"turns": 1, "exit": 3}, ("failed", "program", "program", "error")),
        ({}, {"turns": 1, "rewards": {"won": "much"}}, ("failed", "program", "program", "error")),
        ({"agent": ["./nowhere"]}, {"turns": 1}, ("failed", "program", "program", "error")),
        ({"max_turns": 1}, {"turns": 9}, ("truncated", "policy", None, "ok")),
        ({"max_turns": 1}, {"turns": 9, "crashes": True}, ("truncated", "policy", None, None)),
        ({"max_turns": 1}, {"turns": 9, "waits_s": 6}, ("truncated", "policy", None, "ok")),
        (
            {"idle_s": 1, "call_timeout_s": 0.2},
            {"turns": 0, "waits_s": 600},
            ("truncated", "policy", None, "unscorable"),
        ),
    ],
)
async def test_how_a_program_ends_is_how_its_episode_ends(
    fresh: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    row: dict[str, Any],
    expected: tuple[str, str, str | None, str | None],
):
    monkeypatch.setattr(programs, "LOOK_S", 0.3)
    async with playing(fresh, tmp_path, **AGENT | config) as game:
        found = await game.play(asked(**row))
    won = found.episode.rewards.get("won")
    assert (found.episode.status, found.episode.cause, found.ending.lost, won and won.status) == expected


async def open_sessions(server: Server) -> int:
    async with server.client() as client:
        sessions = (await client.info()).sessions
    assert sessions is not None
    return sessions.open
