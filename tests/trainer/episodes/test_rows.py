"""Rows of episodes: without prompts, or numbers alone; and what the canary and the length checks make of them."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.tiny_model import make_tokenizer

from grpo_trainer.config.doubts import doubts
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.data.episode_rows import RowsOfEpisodes
from grpo_trainer.data.run_rows import load_eval_sets, load_training_rows, longest_context
from grpo_trainer.episodes import plays
from grpo_trainer.errors import UsageError
from grpo_trainer.live_sources import accuracy_reward_shown

TOKENIZER = make_tokenizer()


def config_of(tmp_path: Path, *, episodes: dict[str, Any] | None, **more: Any) -> RunConfig:
    played = {"episodes": {"environment": "game.py:Game", **episodes}} if episodes is not None else {}
    run = {"run_dir": str(tmp_path / "run"), "model": {"name_or_path": "m"}, "reward": {"reward_funcs": ["x"]}}
    return RunConfig.model_validate(run | played | more)


def loaded(config: RunConfig, folder: Path) -> tuple[Any, Any]:
    kept: dict[str, Any] = {"folder": folder, "of_episodes": RowsOfEpisodes.of(config)}
    return load_training_rows(config.data, TOKENIZER, **kept), load_eval_sets(config.data, TOKENIZER, **kept)


def test_a_row_of_episodes_needs_no_prompt_and_one_of_single_turns_does(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"door": number}) + "\n" for number in range(3)))
    data = {"data": {"dataset": str(file)}}
    rows, held_out = loaded(config_of(tmp_path, episodes={}, **data), tmp_path)
    assert [(row.prompt, row.token_ids, row.columns) for row in rows] == [("", [], {"door": n}) for n in range(3)]
    assert [len(store) for store in held_out.values()] == [0]
    with pytest.raises(UsageError, match="has no column prompt"):
        loaded(config_of(tmp_path, episodes=None, **data), tmp_path)


def test_a_prompt_that_is_there_is_read_as_always(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "ab"}\n')
    config = config_of(tmp_path, episodes={}, data={"dataset": str(file)})
    rows, held_out = loaded(config, tmp_path)
    assert (rows[0].prompt, len(rows[0].token_ids)) == ("ab", 2)
    assert longest_context(config, rows, held_out) == 3
    limited = config_of(tmp_path, episodes={"max_context_tokens": 99}, data={"dataset": str(file)})
    assert longest_context(limited, rows, held_out) == 99
    single = config_of(tmp_path, episodes=None, data={"dataset": str(file)}, rollout={"max_completion_length": 7})
    assert longest_context(single, rows, held_out) == 9


def test_rows_that_are_numbers_have_the_held_out_ones_behind_them(tmp_path: Path):
    config = config_of(tmp_path, episodes={"num_tasks": 5}, data={}, eval={"max_rows": 2})
    rows, held_out = loaded(config, tmp_path)
    assert [row.columns for row in rows] == [{"task": number} for number in range(5)]
    assert [row.columns for row in held_out[""]] == [{"task": 5}, {"task": 6}]
    assert config.has_held_out_rows
    assert config.evaluation_metrics
    again, _ = loaded(config, tmp_path)
    assert again.stores[""].summary == rows.stores[""].summary
    config = config_of(tmp_path, episodes={"num_tasks": 5}, data={})
    assert not config.has_held_out_rows
    assert [len(store) for store in loaded(config, tmp_path)[1].values()] == [0]


def test_the_rewards_of_a_run_are_those_that_episodes_bring_and_those_of_the_server(tmp_path: Path):
    config = config_of(tmp_path, episodes={"num_tasks": 5}, data={})
    assert (config.reward_weights, config.decides_accuracy) == ({"environment": 1.0, "x": 1.0}, "environment")
    assert config_of(tmp_path, episodes=None, data={"dataset": "d"}).reward_weights == {"x": 1.0}


@pytest.mark.parametrize(
    ("name", "error"),
    [("environment", None), ("x", None), ("y", "y is none of the rewards with a weight: environment, x; one of")],
)
def test_the_reward_that_decides_what_is_correct_is_one_of_them(tmp_path: Path, name: str, error: str | None):
    reward = {"reward_funcs": ["x"], "accuracy_reward": name}
    with nullcontext() if error is None else pytest.raises(ValidationError, match=error):
        config = config_of(tmp_path, episodes={"num_tasks": 5}, data={}, reward=reward)
        assert config.decides_accuracy == name


@pytest.mark.parametrize(
    ("weights", "shown"),
    [({}, "environment where an episode brings it, else x"), ({"environment": 2.0}, "environment"),
     ({"environment": 0.0}, "x")],
)  # fmt: skip
def test_the_page_names_both_rewards_where_a_scheduler_need_not_pay(
    tmp_path: Path, weights: dict[str, float], shown: str
):
    episodes = {"environment": None, "multi_turn_scheduler": "a.py:Tips", "reward_weights": weights}
    config = config_of(tmp_path, episodes=episodes, data={"dataset": "d"})
    assert accuracy_reward_shown(config) == shown


def file_of_rows(tmp_path: Path, *rows: dict[str, Any]) -> dict[str, Any]:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"dataset": str(tmp_path / "rows.jsonl")}


def test_a_row_that_names_no_class_is_found_before_the_first_step_also_with_kept_rows(tmp_path: Path):
    data = file_of_rows(tmp_path, {"environment": "a"}, {"environment": "b"})
    for names, named in ((["a", "b"], None), (["a", "c"], "row 2: its environment is 'b', which is none of .*: a, c")):
        factory = {"environment_factory": {name: f"{name}.py:Game" for name in names}}
        with nullcontext() if named is None else pytest.raises(UsageError, match=named):
            loaded(config_of(tmp_path, episodes={"environment": None, **factory}, data=data), tmp_path)


def test_a_recipe_may_name_the_class_of_a_row(tmp_path: Path):
    (tmp_path / "recipe.py").write_text(
        "def chosen(row):\n    return {'prompt': 'Which?', 'environment': 'a' if row['door'] else 'b'}\n"
    )
    data = {**file_of_rows(tmp_path, {"door": 1}, {"door": 0}), "recipe": f"{tmp_path}/recipe.py:chosen"}
    factory = {"environment": None, "environment_factory": {"a": "a.py:Game", "b": "b.py:Game"}}
    rows, _ = loaded(config_of(tmp_path, episodes=factory, data=data), tmp_path)
    assert [row.columns["environment"] for row in rows] == ["a", "b"]


def test_a_row_with_a_prompt_behind_one_without_is_an_error(tmp_path: Path):
    data = file_of_rows(tmp_path, {"door": 1}, {"door": 2, "prompt": None}, {"door": 3, "prompt": "Which?"})
    with pytest.raises(UsageError, match="row 3 has a prompt, and row 1 has none"):
        loaded(config_of(tmp_path, episodes={}, data=data), tmp_path)


class Doors:
    """A class as TRL's environment_factory takes it."""

    def reset(self, door: int) -> str:
        return f"Door {door}."


def test_the_system_prompt_stands_before_what_an_environment_for_trl_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Its limit is kept by the signal that limits the tests, too.
    monkeypatch.setattr(plays, "call", lambda function, *given, timeout_s, **named: function(*given, **named))
    data = {**file_of_rows(tmp_path, {"door": 1}), "system": "Be brief."}
    factory = {"environment": None, "environment_factory": "doors.py:Doors"}
    config = config_of(tmp_path, episodes=factory, data=data)
    (row,), _ = loaded(config, tmp_path)
    assert row.token_ids == []
    played = plays.TrlClass("Doors", Doors, [], drops_environment=False)
    found = played.reset(row=row.columns, prompt=row.prompt, seed=0, timeout_s=10.0)
    assert found["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Door 1."}]
    assert not any("data.system" in doubt for doubt in doubts(config))
    unread = doubts(config_of(tmp_path, episodes={}, data=data))
    but = (
        "data.system does nothing, unless an Env of ms-swift's gym plays: episodes.environment gets the row, and says "
    )
    assert any(doubt.startswith(but) for doubt in unread)
