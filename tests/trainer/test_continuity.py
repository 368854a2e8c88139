"""A resumed run goes on with the prompts and the model of its checkpoint, or says what is another one."""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.tiny_model import make_tokenizer, save_tiny_model

from grpo_trainer.checkpoint.continuity import check_continuity, kept_of, kept_of_rows
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.data.demonstrations import load_demonstrations
from grpo_trainer.data.run_rows import load_eval_sets, load_training_rows
from grpo_trainer.errors import UsageError

WORDS = ["ab", "cd", "ef", "gh"]
OTHER_PROMPTS = "it would repeat some prompts and skip others"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("first", "second")):
        save_tiny_model(folder / name, seed=seed, num_layers=1)
    shutil.copytree(folder / "first", folder / "first-moved")
    return folder


def write_rows(name: str, *words: str) -> None:
    Path(name).write_text("".join(json.dumps({"question": word, "solution": 1}) + "\n" for word in words))


def facts_of(models: Path, **changes: Any) -> dict[str, Any]:
    """What a run keeps. A change is a setting with `__` between section and key."""
    content: dict[str, Any] = {
        "run_dir": "run",
        "model": {"name_or_path": str(models / "first")},
        "data": {
            "dataset": "rows.jsonl",
            "eval_dataset": "held_out.jsonl",
            "prompt_column": "question",
        },
        "reward": {"reward_funcs": ["accuracy"]},
    }
    for name, value in changes.items():
        section, _, key = name.rpartition("__")
        (content.setdefault(section, {}) if section else content)[key] = value
    config = RunConfig.model_validate(content)
    tokenizer = make_tokenizer()
    rows, held_out = load_training_rows(config.data, tokenizer), load_eval_sets(config.data, tokenizer)
    demonstrations = load_demonstrations(config.chord, config.data, tokenizer)
    return kept_of(config) | kept_of_rows(config, rows, held_out, demonstrations)


@pytest.fixture
def saved(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The state of a checkpoint, as it is read; its rows are in the current folder."""
    monkeypatch.chdir(tmp_path)
    write_rows("rows.jsonl", *WORDS)
    write_rows("held_out.jsonl", "xy")
    return json.loads(json.dumps({"step": 3, **facts_of(models)}))


def told(saved: dict[str, Any], facts: dict[str, Any], caplog: pytest.LogCaptureFixture) -> str:
    """What a run with `facts` is refused for, or else the warnings that it goes on with."""
    caplog.set_level(logging.WARNING)
    caplog.clear()
    try:
        check_continuity(saved, facts, Path("checkpoint-3"))
    except UsageError as error:
        return f"refused: {error.message}"
    return "\n".join(record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer__learning_rate": 1e-3, "algorithm__beta": 0.1, "max_steps": 7, "data__max_prompt_length": 99},
        {"rollout__num_generations": 4, "rollout__generation_batch_size": 256},
        {"rollout__num_generations": 4, "max_steps": 9},
        {"data__dataset": "moved.jsonl", "model__name_or_path": "first-moved"},
    ],
    ids=["nothing", "how it learns", "smaller groups", "more prompts in a step", "where the files are"],
)
def test_what_changes_no_prompt_changes_nothing(
    changes: dict[str, Any], saved: Any, models: Path, caplog: pytest.LogCaptureFixture
):
    shutil.copy("rows.jsonl", "moved.jsonl")
    os.utime("rows.jsonl", (0, 0))
    if "model__name_or_path" in changes:
        changes = changes | {"model__name_or_path": str(models / changes["model__name_or_path"])}
    assert told(saved, facts_of(models, **changes), caplog) == ""


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"seed": 7}, "seed 42, and this run has 7"),
        ({"data__shuffle": False}, "data.shuffle True, and this run has False"),
        (
            {"data__dataset": "rows.jsonl#3"},
            "data.dataset 4 rows of rows.jsonl, and this run has 3 rows of rows.jsonl#3",
        ),
        ({"data__dataset": "other.jsonl"}, "data.dataset 4 rows of rows.jsonl, and this run has 4 rows of other.jsonl"),
        (
            {"seed": 7, "data__dataset": "more.jsonl"},
            "seed 42, and this run has 7: " + OTHER_PROMPTS
            + ". It was written with data.dataset 4 rows of rows.jsonl, and this run has 5 rows of more.jsonl",
        ),
    ],
    ids=["seed", "order", "fewer rows", "other rows", "several"],
)  # fmt: skip
def test_what_gives_a_position_another_prompt_is_refused(
    changes: dict[str, Any], difference: str, saved: Any, models: Path, caplog: pytest.LogCaptureFixture
):
    write_rows("other.jsonl", *reversed(WORDS))
    write_rows("more.jsonl", *WORDS, "ij")
    expected = f"refused: the checkpoint checkpoint-3 was written with {difference}: {OTHER_PROMPTS}"
    assert told(saved, facts_of(models, **changes), caplog) == expected


def test_a_file_with_other_rows_under_the_same_name_is_refused(
    saved: Any, models: Path, caplog: pytest.LogCaptureFixture
):
    write_rows("rows.jsonl", *WORDS[:3], "zz")
    assert "this run has 4 rows of rows.jsonl with other contents" in told(saved, facts_of(models), caplog)


def test_another_model_to_start_from_is_refused(saved: Any, models: Path, caplog: pytest.LogCaptureFixture):
    facts = facts_of(models, model__name_or_path=str(models / "second"))
    assert told(saved, facts, caplog).startswith(
        f"refused: the checkpoint checkpoint-3 was written with model.name_or_path {models}/first, and this run has "
        f"{models}/second: its weights are the checkpoint's"
    )
    facts["model"]["model.name_or_path"][1] = ""  # not downloaded yet: its name has to do
    assert told(saved, facts, caplog).startswith("refused: ")
    facts["model"]["model.name_or_path"][0] = f"{models}/first"
    assert told(saved, facts, caplog) == ""


@pytest.mark.parametrize(
    ("changes", "name", "values"),
    [
        ({"data__system": "Be brief."}, "the wording of data.dataset", ""),
        ({"rollout__num_generations": 4}, "the number of prompts in a step", "64 and is 128; num_train_epochs counts"),
        ({"data__eval_dataset": "rows.jsonl"}, "data.eval_dataset", "1 row of held_out.jsonl and is 4 rows of "),
    ],
    ids=["wording", "pace", "held-out rows"],
)  # fmt: skip
def test_what_leaves_each_position_its_row_is_one_warning(
    changes: dict[str, Any], name: str, values: str, saved: Any, models: Path, caplog: pytest.LogCaptureFixture
):
    said = told(saved, facts_of(models, **changes), caplog)
    assert said.startswith(f"{name} has changed since the checkpoint of step 3: it was {values}")
    assert "\n" not in said


def test_other_demonstrations_are_one_warning(saved: Any, models: Path, caplog: pytest.LogCaptureFixture):
    talks = [json.dumps({"question": word, "completion": word}) for word in WORDS]
    chord = {"sft_dataset": "talks.jsonl", "sft_batch_size": 2, "mu_peak": 0.5}
    Path("talks.jsonl").write_text("\n".join(talks))
    before = {"step": 3, **facts_of(models, chord=chord)}
    assert told(before, facts_of(models, chord=chord | {"sft_batch_size": 3}), caplog) == ""
    Path("talks.jsonl").write_text("\n".join(reversed(talks)))
    said = told(before, facts_of(models, chord=chord), caplog)
    assert said.startswith(
        "chord.sft_dataset has changed since the checkpoint of step 3: it was 4 rows of talks.jsonl and"
    )
    assert "\n" not in said
    assert told(saved, facts_of(models, chord=chord), caplog) == ""


def test_a_checkpoint_of_an_older_release_goes_on_with_one_line(
    saved: Any, models: Path, caplog: pytest.LogCaptureFixture
):
    facts = facts_of(models, seed=7)
    said = told({"step": 3, "mixture": []}, facts, caplog)
    assert said.startswith("the checkpoint of step 3, of an older release, does not say which seed, rows and model")
    assert "\n" not in said
    mixed = {"step": 3, "mixture": [["a", 0.75], ["b", 0.25]], "files": {"loss.py:own": "a" * 64}}
    assert "with the datasets a 0.75, b 0.25, and this run has of data.dataset alone: " in told(mixed, facts, caplog)
    facts = {"files": {"loss.py:own": ["b" * 12, "b" * 64]}}
    assert f"it was {'a' * 12} and is {'b' * 12}" in told(mixed, facts, caplog)
