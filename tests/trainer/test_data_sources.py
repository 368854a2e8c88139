"""Rows from files, folders and the Hub: every column under its own name, every mistake in one message."""

import datetime
import decimal
import json
import os
import tracemalloc
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from grpo_trainer.data.sources import find_source, read_rows
from grpo_trainer.data.values import json_value
from grpo_trainer.errors import UnavailableError, UsageError

ROWS = [
    {"nums": [44, 19, 35], "target": 98, "note": "three, numbers"},
    {"nums": [1, 2], "target": 3, "note": ""},
]


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(path: Path, rows: list[dict]) -> Path:
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


class TestFormats:
    def test_json_lines_with_a_byte_order_mark_and_blank_lines(self, tmp_path):
        path = tmp_path / "rows.jsonl"
        path.write_text("\ufeff" + "\n\n".join(json.dumps(row) for row in ROWS) + "\n", encoding="utf-8")
        assert read_rows(str(path), "train") == ROWS

    @pytest.mark.parametrize("content", [ROWS, {"data": ROWS}], ids=["list", "list inside an object"])
    def test_json(self, tmp_path, content):
        path = tmp_path / "rows.json"
        path.write_text(json.dumps(content, indent=1))
        assert read_rows(str(path), "train") == ROWS

    def test_json_lines_in_a_file_called_json(self, tmp_path):
        path = write_jsonl(tmp_path / "rows.json", ROWS)
        assert read_rows(str(path), "train") == ROWS

    def test_one_object_in_a_json_file_is_one_row(self, tmp_path):
        path = tmp_path / "rows.json"
        path.write_text(json.dumps(ROWS[0]))
        assert read_rows(str(path), "train") == ROWS[:1]

    def test_parquet(self, tmp_path):
        assert read_rows(str(write_parquet(tmp_path / "rows.parquet", ROWS)), "train") == ROWS

    def test_csv_columns_are_json_when_all_their_cells_are(self, tmp_path):
        path = tmp_path / "rows.csv"
        rows = ['"[44, 19]",98,01234,[7],,"a, b"', '"[1]",1.10,1e400,x,,"1\n2"', ""]
        path.write_text("\n".join(["nums,target,zip,mixed,empty,note", *rows]))
        assert read_rows(str(path), "train") == [
            {"nums": [44, 19], "target": "98", "zip": "01234", "mixed": "[7]", "empty": "", "note": "a, b"},
            {"nums": [1], "target": "1.10", "zip": "1e400", "mixed": "x", "empty": "", "note": "1\n2"},
        ]

    def test_a_number_takes_the_first_rows(self, tmp_path):
        path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
        assert read_rows(f"{path}#1", "train") == ROWS[:1]
        assert read_rows(f"{path}#9", "train") == ROWS

    def test_a_mistake_behind_the_first_rows_is_one_nevertheless(self, tmp_path):
        path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
        path.write_text(path.read_text() + "[1]\n")
        with pytest.raises(UsageError, match="line 3: a list"):
            read_rows(f"{path}#1", "train")

    @pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet"])
    def test_rows_are_read_while_they_are_asked_for(self, tmp_path, name):
        path = tmp_path / name
        if name == "rows.parquet":
            table = pa.table({"n": range(1000), "text": [str(number) * 10_000 for number in range(1000)]})
            pyarrow.parquet.write_table(table, path, row_group_size=100, compression="none", use_dictionary=False)
        else:
            line = '{{"n": {0}, "text": "{1}"}}\n' if name == "rows.jsonl" else "{0},{1}\n"
            lines = [line.format(number, str(number) * 10_000) for number in range(1000)]
            path.write_text("".join(lines if name == "rows.jsonl" else ["n,text\n", *lines]))
        tracemalloc.start()
        try:
            assert sum(int(row["n"]) for row in find_source(str(path), "train").rows()) == 499_500
            assert tracemalloc.get_traced_memory()[1] < 12e6 < 25e6 < path.stat().st_size
        finally:
            tracemalloc.stop()

    def test_a_file_whose_name_has_the_mark(self, tmp_path):
        path = write_jsonl(tmp_path / "rows#2.jsonl", ROWS)
        assert read_rows(str(path), "train") == ROWS

    def test_more_rows_are_wanted_than_there_are(self, tmp_path, caplog):
        path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
        for limit in range(1, len(ROWS) + 1):
            assert read_rows(f"{path}#{limit}", "train") == ROWS[:limit]
        assert not caplog.records
        assert read_rows(f"{path}#{len(ROWS) + 1}", "train") == ROWS
        assert f"rows.jsonl#{len(ROWS) + 1}: it has {len(ROWS)} rows, and all of them are taken" in caplog.text


class TestFolders:
    def test_files_of_the_split_when_files_are_named_after_splits(self, tmp_path):
        write_jsonl(tmp_path / "train.jsonl", ROWS[:1])
        write_jsonl(tmp_path / "test.jsonl", ROWS[1:])
        assert read_rows(str(tmp_path), "test") == ROWS[1:]

    def test_shards_below_a_folder(self, tmp_path):
        (tmp_path / "data").mkdir()
        for number, row in enumerate(ROWS):
            write_parquet(tmp_path / "data" / f"train-0000{number}-of-00002.parquet", [row])
        assert read_rows(str(tmp_path), "train") == ROWS

    def test_all_files_otherwise(self, tmp_path):
        write_jsonl(tmp_path / "a.jsonl", ROWS[:1])
        write_parquet(tmp_path / "b.parquet", ROWS[1:])
        (tmp_path / "README.md").write_text("not data")
        assert read_rows(str(tmp_path), "train") == ROWS

    def test_what_datasets_has_saved(self, tmp_path):
        datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(tmp_path / "saved")
        assert read_rows(str(tmp_path / "saved"), "train") == ROWS

    def test_a_split_that_is_not_there(self, tmp_path):
        write_jsonl(tmp_path / "train.jsonl", ROWS)
        with pytest.raises(UsageError, match=r"no split test; its files are train.jsonl \(train\)"):
            read_rows(str(tmp_path), "test")


class TestHub:
    def test_rows_of_a_split_and_a_subset(self, monkeypatch):
        asked = []

        def load_dataset(name, subset):
            asked.append((name, subset))
            return datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        assert read_rows("AI-MO/NuminaMath-TIR:default#1", "train") == ROWS[:1]
        assert asked == [("AI-MO/NuminaMath-TIR", "default")]
        with pytest.raises(UsageError, match=r"no split test.*it has train"):
            read_rows("AI-MO/NuminaMath-TIR", "test")

    def test_a_hub_that_cannot_be_reached(self, monkeypatch):
        def load_dataset(name, subset):
            raise ConnectionError("Couldn't reach the Hub\nand a long trace")

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        with pytest.raises(
            UnavailableError, match=r"no local file.*Couldn't reach the Hub \(check the name and the network"
        ):
            read_rows("org/name", "train")


class TestIdentity:
    def identity(self, name: str | Path, split: str = "train") -> str | None:
        found = find_source(str(name), split).identity
        return None if found is None else json.dumps(found)

    def test_it_changes_with_a_file(self, tmp_path):
        path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
        first = self.identity(path)
        assert first == self.identity(path)
        os.utime(path, ns=(1, 1))
        assert first != self.identity(path)
        os.utime(path, ns=(1, 2))
        second = self.identity(path)
        write_jsonl(path, ROWS[:1])
        os.utime(path, ns=(1, 2))
        assert self.identity(path) != second

    def test_it_is_that_of_the_files_of_the_split(self, tmp_path):
        write_jsonl(tmp_path / "train.jsonl", ROWS)
        first = self.identity(tmp_path)
        write_jsonl(tmp_path / "test.jsonl", ROWS)
        assert self.identity(tmp_path) == first != self.identity(tmp_path, "test")
        write_jsonl(tmp_path / "train-2.jsonl", ROWS)
        assert self.identity(tmp_path) != first

    def test_what_datasets_has_saved(self, tmp_path):
        rows = datasets.Dataset.from_list(ROWS)
        datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(tmp_path / "saved")
        first = self.identity(tmp_path / "saved")
        assert self.identity(tmp_path / "saved") == first != self.identity(tmp_path / "saved", "test")

    def test_on_the_hub_it_is_more_than_the_name(self, monkeypatch):
        table = datasets.table.InMemoryTable.from_pylist(ROWS)
        one, other = (datasets.Dataset(table, fingerprint=name) for name in ("of one revision", "of another"))
        loaded = iter([one, one, other, one.to_iterable_dataset()])
        monkeypatch.setattr(datasets, "load_dataset", lambda name, subset: next(loaded))
        first = self.identity("org/name")
        assert self.identity("org/name") == first
        assert self.identity("org/name") != first
        assert self.identity("org/name") is None  # it has no fingerprint


class TestMistakes:
    def mistake(self, name: str | Path) -> str:
        with pytest.raises(UsageError) as caught:
            read_rows(str(name), "train")
        return str(caught.value)

    def test_a_missing_file_names_the_nearest(self, tmp_path):
        write_jsonl(tmp_path / "train.jsonl", ROWS)
        assert f"did you mean {tmp_path / 'train.jsonl'}?" in self.mistake(tmp_path / "trian.jsonl")
        assert "holds train.jsonl" in self.mistake(tmp_path / "x.csv")
        assert "there is no folder" in self.mistake(tmp_path / "no" / "x.csv")

    @pytest.mark.parametrize(("name", "content"), [("a.jsonl", ""), ("a.json", "[]"), ("a.csv", "nums,target\n")])
    def test_an_empty_dataset(self, tmp_path, name, content):
        (tmp_path / name).write_text(content)
        assert "has no rows" in self.mistake(tmp_path / name)

    def test_an_unknown_format(self, tmp_path):
        (tmp_path / "rows.xlsx").write_bytes(b"PK")
        assert "the format .xlsx is unknown (known are .jsonl, .json, .csv, .parquet)" in self.mistake(
            tmp_path / "rows.xlsx"
        )

    def test_a_bad_line_is_named(self, tmp_path):
        path = tmp_path / "rows.jsonl"
        path.write_text('{"a": 1}\n\n{"a": }\n')
        assert f"{path}, line 3: no JSON" in self.mistake(path)
        path.write_text('{"a": 1}\n[1]\n')
        assert f"{path}, line 2: a list where an object is expected" in self.mistake(path)

    def test_bad_json(self, tmp_path):
        path = tmp_path / "rows.json"
        path.write_text('[\n{"a": 1},\n{"a": }\n]')
        assert f"{path}, line 3: no JSON" in self.mistake(path)
        path.write_text("7")
        assert "is no list of objects" in self.mistake(path)
        path.write_text('{"a": 1}\n{"a": \n')
        assert f"{path}, line 2: no JSON" in self.mistake(path)

    def test_a_csv_line_with_too_many_cells(self, tmp_path):
        path = tmp_path / "rows.csv"
        path.write_text("nums,target\n[1, 2],3\n")
        assert "line 2: 3 cells, the first line names 2" in self.mistake(path)

    def test_a_broken_parquet_file(self, tmp_path):
        path = write_parquet(tmp_path / "rows.parquet", ROWS)
        path.write_bytes(path.read_bytes()[:-40])
        assert "is no readable Parquet file" in self.mistake(path)

    def test_a_parquet_file_with_two_columns_of_one_name(self, tmp_path):
        path = tmp_path / "rows.parquet"
        pyarrow.parquet.write_table(pa.table([[1], [2]], names=["n", "n"]), path)
        assert "has two columns n (rename one of them)" in self.mistake(path)

    @pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
    def test_bytes_that_are_no_text(self, tmp_path, name):
        line = {"a.jsonl": b'{"a": "%b"}\n', "a.csv": b"%b\n"}[name]
        (tmp_path / name).write_bytes(line % b"x" * 9000 + line % b"\xff")
        assert f"{tmp_path / name}, line 9001: not UTF-8 text: invalid start byte" in self.mistake(tmp_path / name)

    def test_bytes_that_are_no_text_in_a_parquet_file(self, tmp_path):
        text = pa.Array.from_buffers(pa.string(), 2, pa.array(["xy", "abc"], pa.binary()).buffers())
        text = pa.concat_arrays([text, pa.array([b"\xed\xa0\x80"], pa.binary()).view(pa.string())])
        pyarrow.parquet.write_table(pa.table({"n": [1, 2, 3], "text": text}), tmp_path / "a.parquet")
        assert "a.parquet, row 3, column text: not UTF-8 text" in self.mistake(tmp_path / "a.parquet")

    @pytest.mark.parametrize(
        ("name", "content", "place"),
        [
            ("a.jsonl", '{"a": 0}\n{"a": [{"b": "\\ud800"}]}\n', r"row 2, column a: half of a surrogate pair, \ud8"),
            ("a.jsonl", '{"\\udc00": 1}\n', r"row 1, column \udc00: half of a surrogate pair, \udc00"),
            ("a.json", '[{"a": "\\ud83d\\ude00"}, {"a": "\\ude00\\ud83d"}]', r"row 2, column a: half of a surrogate"),
            ("a.csv", 'a\n"[""\\ud800""]"\n', r"row 1, column a: half of a surrogate pair"),
            ("a.jsonl", '{"a": 1}\n{"a": 1, "b": 2, "a": 3}\n', "row 2 has the key a twice"),
            ("a.jsonl", '{"a": [{"b": 1, "b": 1}]}\n', "row 1, column a: an object has the key b twice"),
            ("a.json", '[{"a": 0}, {"a": {"b": 1, "b": 2}}]', "row 2, column a: an object has the key b twice"),
            ("a.json", '{"data": [{"a": 0}], "data": []}', "its object has the key data twice"),
            ("a.csv", 'a\n"{""b"": 1, ""b"": 2}"\n', "row 1, column a: an object has the key b twice"),
            ("a.csv", "a,b,a\n1,2,3\n", "line 1: the column a stands twice"),
            ("a.csv", ",b,\n1,2,3\n", "line 1: two columns have no name"),
            ("a.jsonl", '{"a": 1}\n{"a": [-1e400]}\n', "row 2, column a: the number -1e400 is beyond the range"),
            ("a.jsonl", '{"a": 1}\n{"a": ' + "9" * 5000 + "}\n", "from line 2 on: no JSON: Exceeds the limit"),
            ("a.jsonl", '{"a": ' + "[" * 100_000, "from line 1 on: no JSON: too many brackets"),
        ],
    )  # fmt: skip
    def test_what_would_be_lost_or_changed_is_refused(self, tmp_path, name, content, place):
        (tmp_path / name).write_text(content)
        mistake = self.mistake(tmp_path / name)
        assert mistake.startswith(f"dataset {tmp_path / name}")
        assert place in mistake

    def test_a_subset_that_is_no_number(self, tmp_path):
        path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
        assert f"write {path}#500" in self.mistake(f"{path}#all")


def test_values_become_json():
    value = {
        1: np.int64(3),
        "array": np.array([[1.5, 2.0]]),
        "not_a_number": float("nan"),
        "decimal": decimal.Decimal("1.50"),
        "date": datetime.datetime(2026, 1, 2, 3, 4),
        "bytes": b"\x00\xff",
        "scalar": pa.scalar([1, 2]),
        "kept": [True, None, "x", (1, 2)],
    }
    converted = json_value(value)
    assert converted == {
        "1": 3,
        "array": [[1.5, 2.0]],
        "not_a_number": None,
        "decimal": "1.50",
        "date": "2026-01-02T03:04:00",
        "bytes": "AP8=",
        "scalar": [1, 2],
        "kept": [True, None, "x", [1, 2]],
    }
    assert json.loads(json.dumps(converted, allow_nan=False)) == converted
