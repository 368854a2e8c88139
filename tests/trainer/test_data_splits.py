"""Files of a folder by split: from any word of a name, and never two splits mixed without a word."""

import json
import logging
from pathlib import Path

import pytest

from grpo_trainer.data.sources import read_rows
from grpo_trainer.errors import UsageError


def folder_of(tmp_path: Path, *names: str) -> Path:
    """A folder with these files, each with one row: its own name."""
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"prompt\n{name}\n" if path.suffix.lower() == ".csv" else json.dumps({"prompt": name}) + "\n")
    return tmp_path


def names_read(folder: Path, split: str) -> list[str]:
    return [row["prompt"] for row in read_rows(str(folder), split)]


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train.jsonl", "test.jsonl"),
        ("gsm8k_train.jsonl", "gsm8k_test.jsonl"),
        ("Train.jsonl", "Test.jsonl"),
        ("TRAIN.JSONL", "TEST.JSONL"),
        ("training.jsonl", "testing.jsonl"),
        ("trainset.jsonl", "evalset.jsonl"),
        ("math-train-v2.csv", "math-test-v2.csv"),
        ("train_set.jsonl", "held_out.jsonl"),
        ("mathTrain.jsonl", "MATHTest.jsonl"),
        ("rows.train.jsonl", "rows.eval.jsonl"),
        ("train2024.jsonl", "holdout-1.jsonl"),
        ("data/train/0.jsonl", "data/test/0.jsonl"),
        ("Train Data/0.jsonl", "Evaluation/math/0.jsonl"),
        ("a/train_test_split/train/0.jsonl", "a/train_test_split/test/0.jsonl"),
        ("default/train-00000-of-00001.jsonl", "default/test-00000-of-00001.jsonl"),
        ("训练集.jsonl", "测试集.jsonl"),
    ],
)
def test_a_split_is_found_in_any_word_of_a_name(tmp_path: Path, train: str, test: str):
    folder = folder_of(tmp_path, train, test)
    assert names_read(folder, "train") == names_read(folder, "training") == [train]
    assert names_read(folder, "test") == [test]


@pytest.mark.parametrize(("asked", "name"), [("validation", "val"), ("dev", "validation"), ("valid", "devset")])
def test_validation_has_several_words(tmp_path: Path, asked: str, name: str):
    folder = folder_of(tmp_path, "train.jsonl", f"{name}/0.jsonl", "test.jsonl")
    assert names_read(folder, asked) == [f"{name}/0.jsonl"]


def test_a_split_of_that_very_name_comes_first(tmp_path: Path):
    folder = folder_of(tmp_path, "train.jsonl", "eval.jsonl", "test.jsonl", "dev.jsonl", "val.jsonl")
    for split in ("train", "eval", "test", "dev", "val"):
        assert names_read(folder, split) == [f"{split}.jsonl"]


def test_all_files_of_a_split_are_read(tmp_path: Path):
    names = ["a/train.jsonl", "train-1.jsonl", "train_hard.jsonl"]
    assert names_read(folder_of(tmp_path, *names, "dev.jsonl"), "train") == names


def test_a_split_with_a_name_of_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    names = [f"data/{name}-00000-of-00001.jsonl" for name in ("train_prefs", "train_sft", "test_prefs")]
    folder = folder_of(tmp_path, *names)
    assert names_read(folder, "train_prefs") == names[:1]
    assert not caplog.records
    assert names_read(folder, "test") == names[2:]
    with pytest.raises(UsageError, match="splits that may be meant by train: train_prefs, train_sft; its files"):
        names_read(folder, "train")


def test_the_split_of_that_very_name_comes_before_others_with_the_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    names = [f"{name}-00000-of-00001.jsonl" for name in ("auxiliary_train", "test", "train")]
    assert names_read(folder_of(tmp_path, *names), "train") == names[2:]
    assert f"left out, for their names: {names[0]} (train)" in caplog.text


def test_hidden_files_and_files_about_a_dataset_are_no_data(tmp_path: Path):
    folder = folder_of(
        tmp_path,
        "rows.jsonl",
        ".ipynb_checkpoints/rows-checkpoint.jsonl",
        ".rows.jsonl",
        "__MACOSX/rows.jsonl",
        "dataset_infos.json",
    )
    assert names_read(folder, "train") == ["rows.jsonl"]


def test_a_folder_that_is_hidden_itself_may_hold_data(tmp_path: Path):
    assert names_read(folder_of(tmp_path / ".cache" / "data", "rows.jsonl"), "train") == ["rows.jsonl"]


@pytest.mark.parametrize(
    "unclear",
    ["train_eval.jsonl", "train/test_cases.jsonl", "test/train.jsonl", "train-test/0.jsonl", "test/x/train-1.jsonl"],
)
def test_a_name_with_two_splits_is_refused(tmp_path: Path, unclear: str):
    folder = folder_of(tmp_path, "train.jsonl", "test.jsonl", unclear)
    with pytest.raises(UsageError, match=rf"not clear which of its files are of the split train: {unclear} \(\w+ or t"):
        names_read(folder, "train")
    assert names_read(folder_of(tmp_path, "val.jsonl"), "val") == ["val.jsonl"]
    assert names_read(folder / unclear, "train") == [unclear], "a file named by itself is taken as it is"


@pytest.mark.parametrize(
    ("names", "split", "listed"),
    [
        (["rows.jsonl", "rows_test.jsonl"], "train", r"rows.jsonl \(no split\), rows_test.jsonl \(test\)"),
        (["train.jsonl", "val.jsonl"], "test", r"train.jsonl \(train\), val.jsonl \(validation\)"),
        (["rows.jsonl"], "algebra", r"rows.jsonl \(no split\)"),
    ],
)
def test_a_split_that_is_not_there_lists_the_files(tmp_path: Path, names: list[str], split: str, listed: str):
    with pytest.raises(UsageError, match=rf"has no split {split}; its files are {listed}"):
        names_read(folder_of(tmp_path, *names), split)


def test_two_splits_of_which_either_may_be_meant_are_refused(tmp_path: Path):
    folder = folder_of(tmp_path, "train.jsonl", "eval.jsonl", "held-out.jsonl")
    with pytest.raises(UsageError, match="splits that may be meant by test: eval, held_out; its files are eval"):
        names_read(folder, "test")


def test_files_of_no_split_are_all_read_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    folder = folder_of(tmp_path, "part-0.jsonl", "part-1.jsonl")
    assert names_read(folder, "train") == ["part-0.jsonl", "part-1.jsonl"]
    assert not caplog.records, "parts of one name are one dataset"
    folder_of(tmp_path, "unseen.jsonl")
    assert len(names_read(folder, "train")) == 3
    assert "no file is named after a split, so all are of train: part-0.jsonl (no split), " in caplog.text
    assert "unseen.jsonl" in caplog.text


def test_a_file_that_is_left_out_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    assert names_read(folder_of(tmp_path, "train.jsonl", "more.jsonl", "test.jsonl"), "train") == ["train.jsonl"]
    [left_out, taken] = [record.getMessage().partition("split train: ")[2] for record in caplog.records]
    assert left_out == "left out, for their names: more.jsonl (no split)"
    assert taken == "train.jsonl (train)"
