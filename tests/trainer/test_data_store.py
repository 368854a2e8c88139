"""Rows on disk: as they were read, made once for a run, and made again when something that decides them changes."""

import datetime
import json
import logging
import os
import tempfile
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest
from tests.tiny_model import make_tokenizer

from grpo_trainer.config.run_config import DataConfig
from grpo_trainer.data import batches
from grpo_trainer.data.batches import RowBatch
from grpo_trainer.data.images import RowImages
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.data.repeats import repeats
from grpo_trainer.data.row_store import RowStore, open_rows, write_rows
from grpo_trainer.data.rows import load_prompt_rows
from grpo_trainer.data.run_rows import check_vocabulary, load_eval_sets, load_training_rows
from grpo_trainer.data.sources import read_rows
from grpo_trainer.errors import UsageError

ODD_ROWS = [
    {"prompt": "a", "big": 2**63, "huge": -(2**200), "nested": [[1, [2.5, None]], {"k": ["ä", {}]}], "none": None},
    {"prompt": "b", "big": "text in a column of numbers", "text": "日本 \u2028 \x00 😀"},
    {"prompt": "c", "float": 0.1 + 0.2, "whole": 1.0, "small": 5e-324, "true": True, "date": "2026-01-02", "": 0},
]


@pytest.fixture
def tokenizer():
    return make_tokenizer()


def write(path: Path, *rows: dict) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def batch(*lengths: int) -> RowBatch:
    columns, prompts = [{"n": n} for n in lengths], [f"p{n}" for n in lengths]
    return RowBatch(
        list(range(len(lengths))), columns, prompts, [[7] * n for n in lengths], [RowImages([])] * len(lengths)
    )


class TestStore:
    def test_columns_come_back_value_by_value(self, tmp_path, tokenizer):
        dataset = write(tmp_path / "rows.jsonl", *ODD_ROWS)
        rows = load_prompt_rows(DataConfig(dataset=dataset), tokenizer)
        # As text, because 1 == 1.0 == True.
        assert [repr(row.columns) for row in rows] == [repr(row) for row in ODD_ROWS]

    def test_dates_and_bytes_of_a_parquet_file_are_those_that_a_list_of_all_rows_has(self, tmp_path, tokenizer):
        table = pa.table(
            {
                "prompt": [str(number) for number in range(600)],
                "day": [datetime.date(2026, 1, 1)] * 600,
                "time": [datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)] * 600,
                "unsigned": pa.array([2**64 - 1] * 600, pa.uint64()),
                "bytes": [b"\xff"] * 600,
                "not a number": [float("nan")] * 600,
            }
        )
        pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
        rows = load_prompt_rows(DataConfig(dataset=str(tmp_path / "rows.parquet")), tokenizer)
        assert [row.columns for row in rows] == read_rows(str(tmp_path / "rows.parquet"), "train")
        assert rows[0].columns["time"] == "2026-01-01T12:00:00+00:00"
        assert rows[599].columns["unsigned"] == 2**64 - 1

    def test_rows_with_overlong_prompts_are_left_out_and_counted(self, tmp_path, monkeypatch, tokenizer, caplog):
        """The others keep their numbers, by which a reward's columns are found in the dataset."""
        monkeypatch.setattr(batches, "ROWS_PER_BATCH", 3)
        rows_in = [{"prompt": "x" * (90 if number % 3 == 1 else 2), "number": number} for number in range(11)]
        dataset = write(tmp_path / "rows.jsonl", *rows_in)
        config = DataConfig(dataset=dataset, max_prompt_length=64, overlong_prompts="drop")
        told = "4 of 11 rows are left out: their prompts are longer than data.max_prompt_length 64"
        for _ in range(2):  # the second time they are read from the folder
            rows = load_prompt_rows(config, tokenizer, folder=tmp_path)
            assert [(row.index, row.columns["number"]) for row in rows] == [(n, n) for n in (0, 2, 3, 5, 6, 8, 9)]
            assert told in caplog.text
            caplog.clear()

    def test_another_limit_that_leaves_out_other_rows_gives_other_rows(self, tmp_path, tokenizer):
        """A resume must not take them for those of before: the order of the run is one of their numbers."""
        dataset = write(tmp_path / "rows.jsonl", *({"prompt": "x" * length} for length in (10, 70, 20)))
        digests = []
        for limit in (64, 15, 90, 99):
            config = DataConfig(dataset=dataset, max_prompt_length=limit, overlong_prompts="drop")
            digests.append(load_prompt_rows(config, tokenizer).summary.rows_digest)
        assert len(set(digests)) == 3
        assert digests[2] == digests[3] == load_prompt_rows(DataConfig(dataset=dataset), tokenizer).summary.rows_digest

    def test_repeated_rows_have_their_numbers_in_the_dataset(self, tmp_path, tokenizer):
        dataset = write(tmp_path / "rows.jsonl", *({"prompt": text} for text in ("x" * 70, "a", "b", "a")))
        rows = load_prompt_rows(DataConfig(dataset=dataset, max_prompt_length=64, overlong_prompts="drop"), tokenizer)
        assert list(repeats({"": rows}, {})) == ["the training rows: 1 of 3 rows (4) is equal to an earlier row"]
        held_out = write(tmp_path / "held.jsonl", {"prompt": "y" * 70}, {"prompt": "b"})
        config = DataConfig(dataset=held_out, max_prompt_length=64, overlong_prompts="drop")
        found = list(repeats({"": rows}, {"": load_prompt_rows(config, tokenizer)}))
        assert found[1].endswith("1 of 1 rows (2) is among the training rows, too; row 2 is row 3 there")

    def test_a_token_that_the_model_has_not_is_named(self, tmp_path, tokenizer):
        dataset = write(tmp_path / "rows.jsonl", {"prompt": "a"}, {"prompt": "~"})
        config = DataConfig(dataset=dataset)
        rows, held_out = load_training_rows(config, tokenizer), load_eval_sets(config, tokenizer)
        [largest] = tokenizer("~")["input_ids"]
        check_vocabulary(rows, held_out, [], vocab_size=largest + 1)
        with pytest.raises(UsageError, match=f"hold token {largest}, and the model's vocabulary ends at {largest - 1}"):
            check_vocabulary(rows, held_out, [], vocab_size=largest)

    def test_all_prompts_are_too_long(self, tmp_path, tokenizer):
        dataset = write(tmp_path / "rows.jsonl", {"prompt": "x" * 70}, {"prompt": "x" * 90})
        config = DataConfig(dataset=dataset, max_prompt_length=64, overlong_prompts="drop")
        with pytest.raises(UsageError, match="so are 1 more, the longest with 90"):
            load_prompt_rows(config, tokenizer)

    def test_it_is_a_sequence(self, tmp_path, monkeypatch, tokenizer):
        monkeypatch.setattr(batches, "ROWS_PER_BATCH", 3)
        dataset = write(tmp_path / "rows.jsonl", *({"prompt": "x" * (1 + number)} for number in range(8)))
        rows = load_prompt_rows(DataConfig(dataset=dataset), tokenizer)
        everything = list(rows)
        assert [row.index for row in everything] == list(range(8))
        assert [len(row.token_ids) for row in everything] == list(range(1, 9))
        prompt = "x" * 8
        ids = tokenizer(prompt)["input_ids"]
        assert rows[7] == rows[-1] == PromptRow(index=7, token_ids=ids, prompt=prompt, columns={"prompt": prompt})
        assert rows[2:5] == everything[2:5]
        assert rows[:None] == everything
        assert rows[::-3] == everything[::-3]
        assert rows[20:] == []
        for number in (8, -9):
            with pytest.raises(IndexError):
                rows[number]

    def test_lengths_are_known_without_the_rows(self, tmp_path):
        rows = write_rows(tmp_path / "rows.arrow", [batch(3, 9), batch(5, 2), batch(4)], None)
        assert (len(rows), rows.summary.shortest_prompt, rows.summary.longest_prompt) == (5, 2, 9)
        none = write_rows(tmp_path / "none.arrow", [], None)
        assert (len(none), none.summary.longest_prompt, none[:1]) == (0, 0, [])

    def test_a_batch_is_not_taken_for_another(self, tmp_path):
        with pytest.raises(ValueError, match="fewer rows than the first"):
            write_rows(tmp_path / "rows.arrow", [batch(1, 1), batch(1), batch(1, 1)], None)


class TestFile:
    def test_half_of_it_is_never_used(self, tmp_path):
        path = tmp_path / "rows.arrow"

        def failing():
            yield batch(1)
            raise UsageError("row 2 is wrong")

        with pytest.raises(UsageError, match="row 2 is wrong"):
            write_rows(path, failing(), "a")
        assert list(tmp_path.iterdir()) == []
        write_rows(path, [batch(1)] * 100, "a")
        whole = path.read_bytes()
        for content in (b"", whole[:100], whole[: len(whole) // 2], whole[:-1]):
            path.write_bytes(content)
            assert open_rows(path, "a") is None
        path.write_bytes(whole)
        assert open_rows(path, "a") is not None

    def test_what_a_kill_has_left_is_overwritten(self, tmp_path):
        (tmp_path / ".tmp-rows.arrow").write_bytes(b"half")
        assert len(write_rows(tmp_path / "rows.arrow", [batch(1)], "a")) == 1
        assert [path.name for path in tmp_path.iterdir()] == ["rows.arrow"]

    def test_arrow_files_of_others_are_not_rows(self, tmp_path):
        path = tmp_path / "rows.arrow"
        table = pa.table({"n": [1]})
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        assert open_rows(path, "a") is None
        with pytest.raises(ValueError, match="has no summary"):
            RowStore(path)

    def test_a_disk_that_does_not_take_it_is_named(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageError, match=r"the rows cannot be kept in .*rows\.arrow"):
            write_rows(tmp_path / "file" / "rows.arrow", [batch(1)], "a")

    def test_without_a_folder_nothing_stays(self, tmp_path, monkeypatch, tokenizer):
        dataset = write(tmp_path / "rows.jsonl", {"prompt": "a"})
        (tmp_path / "tmp").mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
        rows = load_prompt_rows(DataConfig(dataset=dataset), tokenizer)
        assert list((tmp_path / "tmp").iterdir()) == []
        assert rows[0].prompt == "a"


ROW = {"prompt": "a", "nums": [44, 19], "target": 98, "question": "b"}
USER = [{"role": "user", "content": "a"}]


class TestKeptRows:
    """A file that is kept has the same inode; one that replaces it lay beside it, and has another."""

    @pytest.fixture
    def dataset(self, tmp_path) -> str:
        return write(tmp_path / "rows.jsonl", ROW, ROW, ROW)

    @pytest.fixture
    def load(self, tmp_path, dataset, tokenizer):
        def load(**changes) -> tuple[int, RowStore]:
            rows = load_prompt_rows(DataConfig(**{"dataset": dataset} | changes), tokenizer, folder=tmp_path / "run")
            return (tmp_path / "run" / "rows-train.arrow").stat().st_ino, rows

        return load

    def test_a_second_start_tokenizes_nothing(self, load, monkeypatch, tokenizer, caplog):
        first, rows = load()
        monkeypatch.setattr(type(tokenizer), "__call__", None)
        with caplog.at_level(logging.INFO):
            second, again = load()
        assert second == first
        assert list(again) == list(rows)
        assert "3 rows are in" in caplog.text

    @pytest.mark.parametrize(
        "changes",
        [
            {"recipe": "countdown"},
            {"prompt_template": "{target}"},
            {"system": "Think."},
            {"prompt_column": "question"},
            {"chat_template_kwargs": {"mood": "calm"}},
            {"max_prompt_length": 511},
        ],
        ids=lambda changes: next(iter(changes)),
    )
    def test_another_setting_makes_them_again(self, load, changes):
        first, _ = load()
        second, rows = load(**changes)
        assert second != first
        assert load(**changes)[0] == second
        assert load()[0] != second
        assert len(rows) == 3

    def test_another_number_of_rows_makes_them_again(self, load, dataset):
        first, _ = load()
        second, rows = load(dataset=f"{dataset}#2")
        assert (second != first, len(rows)) == (True, 2)

    def test_another_text_in_a_file_makes_them_again(self, load, tmp_path):
        (tmp_path / "system.txt").write_text("Think.")
        first, _ = load(system=str(tmp_path / "system.txt"))
        (tmp_path / "system.txt").write_text("Guess.")
        second, rows = load(system=str(tmp_path / "system.txt"))
        assert second != first
        assert rows[0].prompt[0]["content"] == "Guess."

    def test_another_file_makes_them_again(self, load, dataset):
        first, _ = load()
        write(Path(dataset), ROW | {"prompt": "b"}, ROW, ROW)
        os.utime(dataset, ns=(1, 1))
        second, rows = load()
        assert second != first
        assert rows[0].prompt == "b"

    def test_another_tokenizer_makes_them_again(self, load, tokenizer):
        first, _ = load()
        tokenizer.chat_template = "{{ messages[0]['content'] }}"
        second, _ = load()
        tokenizer.add_tokens(["44"])
        third, _ = load()
        tokenizer.eos_token = "<pad>"  # which a chat template may write
        fourth, _ = load()
        assert first != second != third != fourth

    def test_a_tokenizer_of_unknown_code_makes_them_again(self, load, tokenizer, monkeypatch):
        monkeypatch.setattr(type(tokenizer), "__module__", "transformers_modules.mine")
        assert load()[0] != load()[0]

    def test_hub_rows_are_kept_only_under_a_fingerprint(self, load, monkeypatch):
        loaded = datasets.Dataset.from_list([ROW])
        monkeypatch.setattr(datasets, "load_dataset", lambda name, subset: loaded)
        assert load(dataset="org/name")[0] == load(dataset="org/name")[0]
        without = loaded.to_iterable_dataset()
        monkeypatch.setattr(datasets, "load_dataset", lambda name, subset: without)
        assert load(dataset="org/name")[0] != load(dataset="org/name")[0]

    def test_held_out_rows_have_a_file_of_their_own(self, load, tmp_path, tokenizer, dataset):
        first, _ = load()
        config = DataConfig(dataset=dataset, eval_dataset=f"{dataset}#1")
        assert len(load_prompt_rows(config, tokenizer, split="eval", folder=tmp_path / "run")) == 1
        assert load()[0] == first
        config = DataConfig(dataset=dataset)
        assert len(load_prompt_rows(config, tokenizer, split="eval", folder=tmp_path / "run")) == 0

    def test_each_held_out_set_has_its_own_file_and_its_own_prompts(self, tmp_path, tokenizer, dataset):
        sets = {"plain": {"dataset": f"{dataset}#1"}, "asked": {"dataset": dataset, "prompt_template": "Add {nums}."}}
        config = DataConfig(dataset=dataset, eval_datasets=sets)
        found = load_eval_sets(config, tokenizer, folder=tmp_path)
        assert {name: len(rows) for name, rows in found.items()} == {"plain": 1, "asked": len(read_rows(dataset, ""))}
        [message] = found["asked"][0].prompt
        assert message["content"].startswith("Add [")
        assert found["plain"][0].prompt == load_prompt_rows(config, tokenizer)[0].prompt
        assert {path.name for path in tmp_path.glob("rows-*")} == {"rows-eval-plain.arrow", "rows-eval-asked.arrow"}

    def test_a_mistake_keeps_nothing(self, load, tmp_path, dataset):
        write(Path(dataset), ROW, {"nums": [1]})
        for _ in range(2):
            with pytest.raises(UsageError, match="row 2 has no value in column prompt"):
                load()
        assert list((tmp_path / "run").iterdir()) == []


class TestMistakesOfAllRows:
    """Batches of two rows: a mistake is that of all rows, in the order in which the checks are made."""

    @pytest.fixture
    def mistake(self, tmp_path, tokenizer, monkeypatch):
        monkeypatch.setattr(batches, "ROWS_PER_BATCH", 2)

        def mistake(*prompts: object, **changes) -> str:
            rows = [{"prompt": prompt, "n": number} for number, prompt in enumerate(prompts)]
            dataset = write(tmp_path / "rows.jsonl", *rows)
            with pytest.raises(UsageError) as caught:
                load_prompt_rows(DataConfig(dataset=dataset, **changes), tokenizer)
            return str(caught.value)

        return mistake

    def test_the_first_row_that_is_too_long_and_the_longest(self, mistake):
        message = mistake("a", "b", "c", "d", "x" * 70, "e", "x" * 90, "f", "x" * 80, max_prompt_length=64)
        assert "row 5: the prompt has 70 tokens and is longer than data.max_prompt_length 64" in message
        assert "so are 2 more, the longest with 90 (raise data.max_prompt_length to 90" in message

    def test_an_empty_prompt_comes_before_a_long_one(self, mistake):
        assert "row 4: the prompt is empty" in mistake("x" * 70, "b", "c", "", "", max_prompt_length=64)

    def test_a_missing_value_comes_before_a_wrong_one(self, mistake):
        assert "row 5 has no value in column prompt" in mistake(7, "x" * 99, "", "b", None, max_prompt_length=64)

    def test_a_wrong_value_comes_before_a_refused_one(self, mistake, tokenizer):
        tokenizer.chat_template = "{{ raise_exception('no') }}"
        assert "row 6: prompt is neither text nor a list" in mistake("a", "b", USER, "", USER, 7)

    def test_the_refused_row_is_named(self, mistake, tokenizer):
        tokenizer.chat_template = "{% if messages[0]['content'] == 'bad' %}{{ raise_exception('no') }}{% endif %}x"
        bad = [{"role": "user", "content": "bad"}]
        assert "row 4: the tokenizer's chat template refuses the messages: no" in mistake(USER, "", USER, bad, bad)

    def test_the_first_needed_column_comes_first(self, mistake):
        # Row 1 lacks the second column, the last row the first.
        message = mistake(None, "b", "c", "d", None, prompt_template="{n} {prompt}")
        assert "row 1 has no value in column prompt, which data.prompt_template needs" in message
        assert "no column m, which data.prompt_template needs" in mistake(None, "b", "c", prompt_template="{m} {n}")

    def test_a_column_that_only_later_rows_have_is_known(self, tmp_path, tokenizer, monkeypatch):
        monkeypatch.setattr(batches, "ROWS_PER_BATCH", 2)
        dataset = write(tmp_path / "rows.jsonl", {"a": 1}, {"a": 1}, {"a": 1}, {"prompt": "x", "promt": "x"})
        with pytest.raises(UsageError, match="row 1 has no value in column prompt"):
            load_prompt_rows(DataConfig(dataset=dataset), tokenizer)
        with pytest.raises(
            UsageError, match=r"no column prom, .* nearest: \w+, \w+ .*its columns are a, prompt, promt"
        ):
            load_prompt_rows(DataConfig(dataset=dataset, prompt_column="prom"), tokenizer)
