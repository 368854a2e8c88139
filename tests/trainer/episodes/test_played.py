"""An episode's name and seeds, and the way from a server's record to the trainer's types."""

from typing import Any

import pytest

from grpo_proto import Sampling
from grpo_proto.messages.sessions import CloseSession, Trajectory
from grpo_trainer.algorithm.image_tokens import FIRST_NAME, key_of
from grpo_trainer.config.episodes import EpisodesConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.data.sent_images import ImagesOfPrompts
from grpo_trainer.episodes.identity import EpisodeAsked
from grpo_trainer.episodes.played import Ending, RecordError, played, score_of
from grpo_trainer.episodes.recording import Place, Recording

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


IMAGE = 9
SEEN = {
    "token_ids": [1, 9, 9, 2, 9, 3, 9, 4, 9], "logprobs": [-0.5, -0.5, -0.5, -0.5],
    "messages": [{"role": "tool", "content": [{"type": "image", "image": "b"}, {"type": "text", "text": "?"}]}],
    "turns": [turn(0, 3, 5), turn(1, 7, 9)], "images": ["a", "b"], "image_starts": [1, 6],
}  # fmt: skip
FORK = {
    "token_ids": [1, 9, 9, 2, 9, 3, 5], "logprobs": [-1.0], "messages": [], "turns": [turn(2, 6, 7)],
    "parent": 0, "fork_at": 5, "images": ["a"], "image_starts": [1],
}  # fmt: skip
ENCODED = {"a": "UUU", "b": "Qk0="}


def test_context_has_names_for_the_places_of_its_images_and_what_was_said_has_none():
    record = trajectory(SEEN, FORK, images=ENCODED)
    episode = played("7-0", 0, record, Ending(), image_token_id=IMAGE).episode
    assert [segment.images for segment in episode.segments] == [("UUU", "Qk0="), ("UUU",)]
    one, other = key_of(["UUU"]), key_of(["Qk0="])
    assert episode.segments[0].token_ids == [1, one, one + 1, 2, 9, 3, other, 4, 9]
    assert episode.segments[1].token_ids == [1, one, one + 1, 2, 9, 3, 5], "the answer before the fork is context"
    assert episode.sampled_token_ids == [2, 9, 4, 9, 5]
    assert episode.transcript == []
    alone = played("7-0", 0, trajectory(SEEN, images=ENCODED), Ending(), image_token_id=IMAGE).episode
    assert alone.transcript == [{"role": "tool", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]


@pytest.mark.parametrize(
    ("images", "encoded", "token_id", "said"),
    [
        (["a", "b"], ENCODED, None, "it shows 2 images, and the model of this run sees none"),
        ([], {}, IMAGE, r"it shows 0 images, .*, and its context has 3 times the model's image token 9"),
        (
            ["a", "b", "a", "b"],
            ENCODED,
            IMAGE,
            r"it shows 4 images, whose tokens begin at \[1, 6, 7, 8\], .* 3 times",
        ),
        (["a"], ENCODED, IMAGE, r"it shows 1 images, whose tokens begin at \[6\], and .* 3 times .* from \[1\]"),
        (["a", "b"], {"a": "UUU"}, IMAGE, "the record of segment 0 is without its image b"),
    ],
)
def test_other_images_than_places_are_named(images: list[str], encoded: dict[str, str], token_id: Any, said: str):
    starts = {0: [], 1: [6], 2: [1, 6], 4: [1, 6, 7, 8]}[len(images)]
    record = trajectory(SEEN | {"images": images, "image_starts": starts}, images=encoded)
    with pytest.raises(RecordError, match=said):
        played("7-0", 0, record, Ending(), image_token_id=token_id)


def test_a_text_with_the_image_token_stays_text_where_no_image_is_seen():
    plain = SEEN | {"images": [], "image_starts": []}
    (segment,) = played("7-0", 0, trajectory(plain), Ending()).episode.segments
    assert max(segment.token_ids) < FIRST_NAME


async def test_a_record_whose_images_have_no_places_is_an_episode_that_failed():
    class Session:
        async def close(self, request: CloseSession, *, retry_for_s: float) -> None:
            pass

        async def trajectory(self, *, num_tokens: int, retry_for_s: float) -> Trajectory:
            return trajectory(SEEN | {"images": ["a"] * 4}, images=ENCODED)

    config = EpisodesConfig(environment="game.py:Game")
    place = Place(None, Sampling(), None, None, 0.0)  # type: ignore[arg-type]
    recording = Recording(EpisodeAsked(7, 0, ROW, seed=1), place, config, "r", ImagesOfPrompts(IMAGE))
    recording._session = Session()  # type: ignore[assignment]
    found = await recording.ended(Ending(), messages=[{"role": "user", "content": "a"}])
    assert (found.episode.status, found.episode.segments, found.ending.lost) == ("failed", [], None)
    assert "it shows 4 images" in (found.ending.detail or "")
    assert found.episode.rewards["environment"].status == "error"
