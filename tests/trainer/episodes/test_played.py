"""An episode's name and seeds, and the way from a server's record to the trainer's types."""

from grpo_proto.messages.sessions import Trajectory
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.episodes.identity import EpisodeAsked
from grpo_trainer.episodes.played import Ending, played, score_of

ROW = PromptRow(0, [], "", {})


def turn(number: int, start: int, end: int, **more: object) -> dict[str, object]:
    return {"turn": number, "start": start, "end": end, "versions": [(3, end - start)], "finish_reason": "stop"} | more


def trajectory(*segments: dict[str, object], **more: object) -> Trajectory:
    stats = {
        "turns": 2,
        "forks": 0,
        "fork_reasons": {},
        "sampled": 3,
        "masked": {},
        "overruled": 0,
        "control_tokens": 0,
    }
    body = {"session_id": "s", "status": "completed", "rewards": {}, "stats": stats, "segments": segments}
    return Trajectory.model_validate(body | more)


FIRST = {
    "token_ids": [1, 2, 3, 4, 5], "logprobs": [-0.5, -0.25], "messages": [{"role": "user", "content": "a"}],
    "turns": [turn(0, 1, 2, reward={"tidy": 2.0, "unknown": 9.0}), turn(1, 3, 4, masked="undelivered", label="m")],
}  # fmt: skip
BRANCH = {
    "token_ids": [1, 2, 6], "logprobs": [-1.0], "messages": [{"role": "user", "content": "b"}],
    "turns": [turn(2, 2, 3, text="last")], "parent": 0, "fork_at": 2, "fork_reason": "branch",
}  # fmt: skip


def test_episodes_of_a_group_share_the_environments_seed_and_have_their_own_of_sampling():
    first, second = (EpisodeAsked(7, index, ROW, seed=11) for index in (0, 1))
    again = EpisodeAsked(7, 0, ROW, seed=11, attempt=3)
    assert first.environment_seed == second.environment_seed < 2**32
    assert first.sampling_seed != second.sampling_seed
    assert (again.sampling_seed, again.session_id("r")) == (first.sampling_seed, first.session_id("r"))
    assert EpisodeAsked(8, 0, ROW, seed=12).environment_seed != first.environment_seed


def test_the_name_of_a_session_fits_into_a_url_and_differs_between_long_names_of_runs():
    asked = EpisodeAsked(7, 0, ROW, seed=11)
    assert asked.session_id("runs/a b") == "runs_a_b-7-0"
    names = {asked.session_id("x" * 300 + end) for end in "ab"}
    assert len(names) == 2
    assert max(map(len, names)) < 200


def test_a_record_becomes_segments_with_their_turns():
    found = played("7-0", 1, trajectory(FIRST, BRANCH, rewards={"won": 1.0}), Ending(), turn_rewards={1: 0.5, 0: 1.0},
                   weights={"tidy": 0.25}, rewards={"environment": score_of(1.5), "none": score_of(None)})  # fmt: skip
    episode = found.episode
    assert [(one.masked, one.reward, one.label) for one in episode.turns] == [
        (None, 1.5, None), ("undelivered", 0.5, "m"), (None, None, None),
    ]  # fmt: skip
    assert episode.sampled_token_ids == [2, 4, 6]
    assert (episode.segments[1].parent, episode.segments[1].fork_at, episode.text) == (0, 2, "last")
    assert {name: score.score for name, score in episode.rewards.items()} == {
        "won": 1.0, "environment": 1.5, "none": None,
    }  # fmt: skip
    assert episode.rewards["none"].status == "unscorable"
    assert (episode.attempt, episode.transcript) == (1, [{"role": "user", "content": "b"}])


def test_a_record_that_is_lost_is_an_episode_without_segments():
    found = played("7-0", 0, None, Ending("failed", "infrastructure", "away", lost="server"))
    assert (found.episode.segments, found.episode.status, found.stats) == ([], "failed", None)
