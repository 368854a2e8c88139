"""Groups of episodes: where they are played, when again, and what is known of those that fail."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.trainer.made_episodes import conversation
from tests.waiting import PATIENCE_S

from grpo_proto import Sampling
from grpo_trainer.config.episodes import EpisodesConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.episodes.identity import EpisodeAsked
from grpo_trainer.episodes.played import Ending, Played
from grpo_trainer.episodes.recording import Place
from grpo_trainer.episodes.sampler import Episodes
from grpo_trainer.errors import RunError
from grpo_trainer.fleet.fleet import Fleet
from grpo_trainer.sampling.sampler import Asked

Script = Callable[[EpisodeAsked, str], Ending | None]
"""How an episode ends on the server of a URL; None: it goes on for ever."""
SERVER_LOST = Ending("failed", "infrastructure", "away", lost="server")
BROKEN = Ending("failed", "infrastructure", "the environment failed", lost="environment")


def asked(position: int, **more: Any) -> Asked:
    return Asked(position, PromptRow(0, [], "", {}), seed=7, **more)


class Plays:
    """Plays nothing, and keeps what it was asked for."""

    def __init__(self, script: Script):
        self.script = script
        self.played: list[tuple[str, int, str]] = []
        self.at_once = self.most_at_once = 0

    async def run_episode(self, asked: EpisodeAsked, place: Place) -> Played:
        self.played.append((asked.session_id("r"), asked.attempt, place.server.base_url))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0.001)
            ending = self.script(asked, place.server.base_url)
            if ending is None:
                await asyncio.Event().wait()
                raise AssertionError("unreachable")
        finally:
            self.at_once -= 1
        episode = conversation(asked.id)
        episode.attempt, episode.status, episode.cause = asked.attempt, ending.status, ending.cause
        return Played(episode, ending, metrics={"tools/calls": 1.0})


class Game:
    """A sampler over a fleet whose servers are members without being there."""

    def __init__(self, script: Script, *, num_servers: int = 2, retry_for_s: float = 5.0, **config: Any):
        self.fleet = Fleet([f"http://127.0.0.1:{port}" for port in range(1, num_servers + 1)], min_replicas=1)
        self.player = Plays(script)
        episodes = EpisodesConfig.model_validate({"environment": "game.py:Game"} | config)
        self.sampler = Episodes(self.fleet, self.player, episodes, retry_for_s)

    async def __aenter__(self) -> "Game":
        await self.fleet.admit(self.fleet.replicas, session=1)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.sampler.close()
        await self.fleet.close()

    async def sample(self, *rows: Asked, n: int = 3) -> list[Any]:
        return await self.sampler.sample(rows, min_version=1, n=n, sampling=Sampling(max_tokens=8))


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_trainer.episodes.sampler.PAUSE_S", 0.0)


async def test_a_group_is_complete_when_all_have_ended_and_stays_on_one_server():
    async with Game(lambda *_: Ending()) as game:
        groups = await game.sample(asked(4), asked(9))
    assert [(group.position, [one.id for one in group.episodes]) for group in groups] == [
        (4, ["4-0", "4-1", "4-2"]), (9, ["9-0", "9-1", "9-2"]),
    ]  # fmt: skip
    urls = [{url for name, _, url in game.player.played if name.startswith(f"r-{position}-")} for position in (4, 9)]
    assert [len(of_group) for of_group in urls] == [1, 1]
    assert urls[0] != urls[1]
    assert groups[0].episodes[0].metrics == {"tools/calls": 1.0}
    assert all(replica.in_flight == 0 for replica in game.fleet.replicas)


async def test_no_more_are_played_at_once_than_the_run_file_says():
    async with Game(lambda *_: Ending(), max_concurrent_episodes=2) as game:
        await game.sample(asked(1), asked(2))
    assert (len(game.player.played), game.player.most_at_once) == (6, 2)
    assert [name for name, *_ in game.player.played[:3]] == ["r-1-0", "r-1-1", "r-1-2"], "first come by group"


async def test_held_out_rows_of_the_same_position_have_sessions_of_their_own():
    async with Game(lambda *_: Ending()) as game:
        await asyncio.gather(*(game.sample(asked(1, of=of), n=1) for of in ("", "eval-sampled", "eval-greedy")))
    names = {name for name, *_ in game.player.played}
    assert names == {"r-1-0", "r-eval-sampled-1-0", "r-eval-greedy-1-0"}


async def test_an_episode_that_is_lost_with_its_server_runs_again_elsewhere():
    """Both ways to lose it: the call says so, or the watcher finds out while the call hangs."""
    hung, begun = asyncio.Event(), set[int]()

    def script(one: EpisodeAsked, url: str) -> Ending | None:
        begun.add(one.index)
        if len(begun) == 3:
            hung.set()
        if one.attempt or one.index == 2:
            return Ending()
        return SERVER_LOST if one.index == 0 else None

    async with Game(script) as game:
        sampling = asyncio.create_task(game.sample(asked(4)))
        await asyncio.wait_for(hung.wait(), PATIENCE_S)
        await asyncio.sleep(0.05)  # the one that was played to its end is not lost
        (away,) = {url for _, attempt, url in game.player.played if not attempt}
        replica = next(one for one in game.fleet.replicas if one.url == away)
        await game.fleet.expel(replica, RuntimeError("it died"), session=1)
        (group,) = await asyncio.wait_for(sampling, PATIENCE_S)
    assert [episode.attempt > 0 for episode in group.episodes] == [True, True, False]
    (last,) = {url for name, attempt, url in game.player.played if name == "r-4-1" and attempt}
    assert last != away
    assert game.sampler.lost_requests >= 2
    assert game.sampler.failing_since_s is None


async def test_without_a_server_the_run_ends_within_the_retry_budget():
    async with Game(lambda *_: SERVER_LOST, retry_for_s=5.0) as game:
        with pytest.raises(RunError, match=r"could play an episode within 5 s, after 20 losses; the last error: away"):
            await game.sample(asked(4))
        assert game.player.at_once == 0, "the others of the group are ended"

    def nobody_is_left(one: EpisodeAsked, url: str) -> Ending:
        for replica in game.fleet.replicas:
            replica.member = False
        return SERVER_LOST

    async with Game(nobody_is_left, retry_for_s=0.05) as game:
        with pytest.raises(RunError, match=r"within 0.05 s, after 1 losses; the last error: away"):
            await game.sample(asked(4), n=1)


async def test_an_environment_that_fails_twice_leaves_its_episode_without_a_total():
    def script(one: EpisodeAsked, url: str) -> Ending:
        return BROKEN if one.index == 0 or (one.index == 1 and not one.attempt) else Ending()

    async with Game(script) as game:
        (group,) = await game.sample(asked(4))
    assert [episode.attempt for episode in group.episodes] == [1, 1, 0]
    failed, *others = group.episodes
    assert failed.is_judged
    assert failed.unscored_because is not None
    assert failed.unscored_because[1].detail == "the environment failed"
    assert failed.left_out_because(mask_truncated=False) == "error"
    assert not any(episode.is_judged for episode in others)
    assert game.sampler.lost_requests == 0
