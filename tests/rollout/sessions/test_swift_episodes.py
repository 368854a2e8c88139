"""Environments and schedulers written for ms-swift play unchanged, each in a process of its own."""

import json
from pathlib import Path

import pytest

from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.episodes.identity import EpisodeAsked
from grpo_trainer.errors import UsageError
from tests.rollout.sessions.marks import IN_PROCESS
from tests.rollout.sessions.scripted_policy import FAMILY, policy

pytestmark = IN_PROCESS

GAMES = Path(__file__).parents[2] / "trainer/episodes/swift_games.py"
GUESS, TIPS = {"environment": f"{GAMES}:Guess"}, {"multi_turn_scheduler": f"{GAMES}:Tips"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(FAMILY)


async def test_a_gym_environment_plays_and_the_sum_of_its_rewards_pays(folder: Path, tmp_path: Path):
    closed = tmp_path / "closed"
    async with policy(folder, tmp_path, **GUESS) as one:
        for text in ("3", "pass", "7"):
            one.says(text=text, thought="Hm.")
        found = await one.plays(number=7, env_config={"system": "You guess.", "closed": str(closed)})
    said = [(message["role"], message["content"].strip()) for message in found.episode.transcript]
    assert said == [
        ("system", "You guess."), ("user", "What is 37*52?"), ("assistant", "3"), ("user", "No, sua."),
        ("assistant", "pass"), ("user", "No, suaua."), ("assistant", "7"),
    ]  # fmt: skip
    assert (found.episode.status, [turn.reward for turn in found.episode.turns]) == ("completed", [-0.25, None, 1.0])
    assert found.episode.rewards["environment"].score == 0.75
    assert closed.read_text() == "closed"


async def test_a_row_chooses_among_the_environments_of_the_file(folder: Path, tmp_path: Path):
    async with policy(folder, tmp_path, **GUESS) as one:
        one.says(text="3", thought="Hm.")
        found = await one.plays(number=7, env_config={"name": "silent"})
    assert "step returned ('Hm.', 0.0, False), not (next_observation, reward, done, info)" in str(found.ending.detail)


async def test_a_row_that_chooses_an_environment_that_is_not_there_is_named(folder: Path, tmp_path: Path):
    async with policy(folder, tmp_path, **GUESS) as one:
        row = PromptRow(0, [], "", {"env_config": {"name": "chess"}})
        found = await one.runner.run_episode(EpisodeAsked(0, 0, row, seed=1), one.place())
    assert "env_config names 'chess', which is none of envs: guess, silent, duck" in str(found.ending.detail)
    assert found.ending.lost == "environment"


@pytest.mark.parametrize(
    ("text", "detail"), [("bug", "KeyError: 'bug' (swift_games.py"), ("sleep", "step did not return within 1 s")]
)
async def test_a_gym_environment_that_raises_or_hangs_leaves_no_score(
    folder: Path, tmp_path: Path, text: str, detail: str
):
    async with policy(folder, tmp_path, **GUESS, call_timeout_s=1) as one:
        one.says(text="7 pass", thought="Hm.")
        one.says(text=text, thought="Hm.")
        found = await one.plays(number=8)
    assert detail in str(found.ending.detail)
    assert found.ending.lost == "environment"
    assert found.episode.rewards["environment"].status == "error"


async def test_a_scheduler_plays_with_its_hooks_until_it_has_finished(folder: Path, tmp_path: Path):
    async with policy(folder, tmp_path, **TIPS, max_turns=5) as one:
        one.says(text="1923", thought="Hm.")
        one.says(text="1924", thought="Hm.")
        found = await one.plays(solution="1924")
    start, said, tip, last = found.episode.transcript[-4:]
    assert (start["content"], said["content"].strip(), last["content"].strip()) == ("At most 5 turns.", "1923", "1924")
    assert json.loads(tip["content"]) == [[1, "stop", next(found.episode.turns).num_tokens]]
    assert (found.episode.status, found.episode.num_sampled) == ("completed", one.num_said)
    assert not found.episode.rewards, "without a total it brings no reward"


async def test_a_scheduler_ends_at_its_limit_of_turns_as_it_would_in_ms_swift(folder: Path, tmp_path: Path):
    async with policy(folder, tmp_path, **TIPS, max_turns=2) as one:
        one.says(text="1", thought="Hm.")
        one.says(text="2", thought="Hm.")
        found = await one.plays(solution="1924")
    assert (found.episode.status, len(list(found.episode.turns))) == ("completed", 2)


async def test_the_total_reward_of_a_scheduler_pays_and_its_done_overrules(folder: Path, tmp_path: Path):
    async with policy(folder, tmp_path, multi_turn_scheduler=f"{GAMES}:Paying") as one:
        one.says(text="1924", thought="Hm.")
        one.says(text="1924", thought="Hm.")
        found = await one.plays(solution="1924")
    assert [message["role"] for message in found.episode.transcript[-3:]] == ["assistant", "user", "assistant"]
    assert [turn.reward for turn in found.episode.turns] == [0.25, 0.25]
    assert found.episode.rewards["environment"].score == 0.5


@pytest.mark.parametrize(
    ("does", "detail"),
    [
        ("edits", "a hook changed messages that were said"),
        ("continues", "or goes on in the policy's words"),
        ("images", "a hook set infer_request.images"),
        ("tokenizes", "AttributeError: Rewriting has no attribute tokenizer; there is no engine of ms-swift"),
        ("ids", "step returned a response_token_ids of its own"),
        ("masks", "step returned a response_loss_mask of its own"),
    ],
)
async def test_what_a_scheduler_cannot_do_to_the_policys_words_is_named(
    folder: Path, tmp_path: Path, does: str, detail: str
):
    async with policy(folder, tmp_path, multi_turn_scheduler=f"{GAMES}:Rewriting") as one:
        one.says(text="1924", thought="Hm.")
        found = await one.plays(does=does)
    assert detail in str(found.ending.detail)
    assert found.ending.lost == "environment"


async def test_what_cannot_play_is_named_before_the_first_episode(folder: Path, tmp_path: Path):
    with pytest.raises(
        UsageError, match=r"episodes.multi_turn_scheduler: .*:Sampling overrides run, which samples with ms-swif"
    ):
        async with policy(folder, tmp_path, multi_turn_scheduler=f"{GAMES}:Sampling"):
            pass
    unfit = tmp_path / "unfit.py"
    unfit.write_text("from swift.rollout.multi_turn import OpenEnvScheduler\n")
    with pytest.raises(UsageError, match=r"cannot import name 'OpenEnvScheduler'.*pip install ms-swift"):
        async with policy(folder, tmp_path, environment=f"{unfit}:Mine"):
            pass
    with pytest.raises(UsageError, match=r":Guess is not derived of ms-swift's MultiTurnScheduler"):
        async with policy(folder, tmp_path, multi_turn_scheduler=f"{GAMES}:Guess"):
            pass
    unfit.write_text("from swift.plugin import Env\nclass Mine(Env):\n    pass\n")
    with pytest.raises(UsageError, match=r"unfit\.py:Mine has no method reset"):
        async with policy(folder, tmp_path, environment=f"{unfit}:Mine"):
            pass
