"""The section `episodes` of a run file: what it allows, and what it names when it does not."""

from typing import Any

import pytest
from pydantic import ValidationError

from grpo_trainer.config.run_config import RunConfig

MINIMAL: dict[str, Any] = {
    "run_dir": "runs/test",
    "model": {"name_or_path": "some/model"},
    "data": {"dataset": "rows.jsonl"},
    "reward": {"reward_funcs": []},
}


def config(episodes: dict[str, Any], **sections: Any) -> RunConfig:
    return RunConfig.model_validate(MINIMAL | sections | {"episodes": episodes})


def test_an_environment_brings_its_reward_and_needs_no_reward_service():
    episodes = config(
        {"environment": "mine.py:Game", "tools": ["mine.py:calc"], "reward_weights": {"environment": 0.5}}
    ).episodes
    assert episodes is not None
    assert episodes.weights == {"environment": 0.5}
    assert [path.name for path in episodes.files] == ["mine.py", "mine.py"]
    assert episodes.max_concurrent == 64


def test_a_class_written_for_trl_has_the_weight_one_under_its_name_and_a_program_none():
    classes = config({"environment_factory": {"a": "a.py:Game", "b": "b.py:Other"}}).episodes
    program = config({"agent": ["./agent"], "env": ["LOG"], "reward_weights": {"won": 2.0}}).episodes
    assert classes is not None
    assert program is not None
    assert classes.weights == {"Game": 1.0, "Other": 1.0}
    assert classes.factories == {"a": "a.py:Game", "b": "b.py:Other"}
    assert program.weights == {"won": 2.0}
    assert classes.optional_rewards == {"Game", "Other"}


def test_functions_written_for_trl_have_the_weight_one_and_come_before_the_class():
    episodes = config(
        {
            "environment_factory": "a.py:Game",
            "reward_funcs": ["a.py:won", "b.py:tidy"],
            "reward_weights": {"tidy": 0.2},
        }
    ).episodes
    assert episodes is not None
    assert list(episodes.weights.items()) == [("won", 1.0), ("tidy", 0.2), ("Game", 1.0)]
    assert [path.name for path in episodes.files] == ["a.py", "a.py", "b.py"]


def test_a_scheduler_of_ms_swift_may_bring_a_reward_and_need_not():
    episodes = config({"multi_turn_scheduler": "a.py:Tips"}, reward={"reward_funcs": ["format"]}).episodes
    assert episodes is not None
    assert episodes.weights == {"environment": 1.0}
    assert [path.name for path in episodes.files] == ["a.py"]


def test_tasks_stand_in_for_a_dataset():
    assert config({"environment": "mine.py:Game", "num_tasks": 100}, data={}).data.dataset is None


@pytest.mark.parametrize(
    ("episodes", "sections", "message"),
    [
        ({}, {}, "name what plays an episode"),
        ({"environment": "mine.py:Game", "agent": ["x"]}, {}, "environment and agent: an episode is played by one"),
        ({"tools": ["mine.py:f"], "agent": ["x"]}, {}, "agent and tools: an episode is played by one of them"),
        ({"environment": "mine:Game"}, {}, "'mine:Game' is no FILE.py:NAME"),
        ({"tools": ["a.py:f", "b.py:f"]}, {}, "tools has the name f twice"),
        (
            {"environment": "mine.py:Game", "reward_funcs": ["a.py:f", "b.py:f"]},
            {},
            "reward_funcs has the name f twice",
        ),
        (
            {"environment_factory": "a.py:Game", "reward_funcs": ["b.py:Game"]},
            {},
            "rewards has the name Game twice",
        ),
        ({"environment": "a.py:Game", "reward_funcs": ["b.py:environment"]}, {}, "rewards has the name environment"),
        ({"tools": ["a.py:f"], "reward_funcs": ["a.py:pay"]}, {}, "name them in reward.reward_funcs"),
        ({"agent": ["x"], "env": ["GRPO_API_TOKEN"]}, {}, "opens every server of the run"),
        (
            {"environment_factory": "a.py:Game", "reward_funcs": ["a.py:near"], "reward_weights": {"neer": 0.5}},
            {},
            "a weight for neer, which is none of the rewards of these episodes: near, Game",
        ),
        ({"environment": "mine.py:Game", "env": ["HOME"]}, {}, "set agent, or leave env out"),
        ({"environment": "mine.py:Game", "call_timeout_s": 400}, {}, "call_timeout_s 400 is above idle_s 300"),
        ({"agent": ["x"], "call_timeout_s": 400}, {}, "a rollout server keeps .* for 600 s"),
        ({"environment": "mine.py:Game", "min_group_size": 9}, {}, "more than rollout.num_generations 8"),
        ({"environment": "mine.py:Game"}, {"data": {}}, "data.dataset is missing: .* needs episodes.num_tasks"),
        ({"environment": "mine.py:Game", "num_tasks": 9}, {}, "leave one of them out"),
        ({"tools": ["mine.py:f"]}, {}, "reward.reward_funcs is empty"),
        ({"environment": "mine.py:Game"}, {"teacher": {"url": "http://a:1"}}, "leave teacher or episodes out"),
        (
            {"environment": "mine.py:Game"},
            {"reward": {"reward_funcs": ["environment"]}},
            "the reward environment is one of episodes and one of reward.reward_funcs",
        ),
    ],
)
def test_what_does_not_go_together_is_named(episodes: dict[str, Any], sections: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        config(episodes, **sections)
