"""Rows that stand more than once are named with their numbers, and held-out rows that are trained on above all."""

import json
from pathlib import Path

import pytest
from tests.tiny_model import make_tokenizer

from grpo_trainer.config.run_config import DataConfig
from grpo_trainer.data import batches
from grpo_trainer.data.repeats import repeats
from grpo_trainer.data.run_rows import load_eval_sets, load_training_rows


def write(path: Path, *rows: dict[str, object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def repeated(**data: object) -> list[str]:
    config, tokenizer = DataConfig.model_validate(data), make_tokenizer()
    return list(repeats(load_training_rows(config, tokenizer).stores, load_eval_sets(config, tokenizer)))


def question(number: int, **more: object) -> dict[str, object]:
    return {"prompt": f"{number}+1?", "solution": str(number + 1)} | more


@pytest.mark.parametrize("rows_per_batch", [3, 256])
def test_equal_training_rows_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_per_batch: int):
    monkeypatch.setattr(batches, "ROWS_PER_BATCH", rows_per_batch)
    rows = write(tmp_path / "a.jsonl", *(question(n) for n in (0, 1, 0, 2, 1, 0)), question(2, solution="4"))
    assert repeated(dataset=rows) == [
        "the training rows: 3 of 7 rows (3, 5, 6) are equal to an earlier row",
        "the training rows: 1 of 7 rows (7) has the prompt of an earlier row, with other columns",
    ]


def test_held_out_rows_that_are_trained_on_are_named(tmp_path: Path):
    rows = write(tmp_path / "a.jsonl", *(question(n, id=n) for n in range(20)))
    held_out = write(tmp_path / "b.jsonl", *(question(n, id=f"test-{n}") for n in range(30, 10, -1)))
    assert repeated(dataset=rows, eval_dataset=held_out) == [
        "the held-out rows: 9 of 20 rows (12, 13, 14, 15, 16, …) are among the training rows, too; "
        "row 12 is row 20 there"
    ]
    assert repeated(dataset=rows, eval_dataset=write(tmp_path / "c.jsonl", question(20))) == []


def test_a_held_out_row_is_found_by_its_columns_where_its_prompt_is_another(tmp_path: Path):
    rows = write(tmp_path / "a.jsonl", question(1), question(2))
    sets = {"again": {"dataset": rows, "prompt_template": "{prompt} Think."}}
    assert repeated(dataset=rows, eval_datasets=sets) == [
        "data.eval_datasets.again: 2 of 2 rows (1, 2) are among the training rows, too; row 1 is row 1 there"
    ]


def test_a_row_of_several_datasets_is_named_unless_its_prompts_differ(tmp_path: Path):
    first, second = write(tmp_path / "a.jsonl", question(1)), write(tmp_path / "b.jsonl", question(2), question(1))
    sets = {"first": {"dataset": first, "ratio": 0.5}, "second": {"dataset": second, "ratio": 0.5}}
    held_out = write(tmp_path / "c.jsonl", question(2))
    assert repeated(datasets=sets, eval_dataset=held_out) == [
        "data.datasets.second: 1 of 2 rows (2) is in a dataset before it, with the same prompt",
        "the held-out rows: 1 of 1 rows (1) is among the training rows, too; row 1 is row 1 of data.datasets.second",
    ]
    sets["second"]["prompt_template"] = "{prompt} Think."
    assert repeated(datasets=sets) == []


def test_rows_that_differ_in_their_tools_alone_have_other_prompts(tmp_path: Path):
    tools = [[{"type": "function", "function": {"name": name, "parameters": {}}}] for name in "fg"]
    messages = [{"role": "user", "content": "Add."}]
    rows = write(tmp_path / "a.jsonl", *({"prompt": messages, "tools": tool} for tool in tools))
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ tools[0].function.name }}{{ messages[0].content }}"
    assert list(repeats(load_training_rows(DataConfig(dataset=rows), tokenizer).stores, {})) == []
