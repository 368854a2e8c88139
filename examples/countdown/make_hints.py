"""Make the data of self-distillation on the Countdown game: what the teacher reads and the policy does not.

    python examples/countdown/make_hints.py runs/demo/data

hinted.jsonl              the rows of train.jsonl with a `hint`, the numbers to take away: `-2 `
hinted_cold_start.jsonl   the rows of cold_start.jsonl with an empty hint, and as many with one and its solution: a
                          model that has learnt these reads hints, and guesses without

hinted_question.txt beside this file is the question with a place for the hint.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from make_data import completion, solution, write_jsonl


def hinted(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        places = solution(row["nums"], row["target"])
        hint = "".join(f"-{row['nums'][place]}" for place in places) or "-0"
        yield {**row, "hint": f"{hint} "}


def with_and_without(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield {**row, "hint": ""}
        (with_hint,) = hinted(iter([row]))
        yield with_hint | {"completion": completion(row["nums"], solution(row["nums"], row["target"]))}


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of make_data.py")
    folder: Path = parser.parse_args(argv).folder
    write_jsonl(folder / "hinted.jsonl", hinted(read_jsonl(folder / "train.jsonl")))
    write_jsonl(folder / "hinted_cold_start.jsonl", with_and_without(read_jsonl(folder / "cold_start.jsonl")))


if __name__ == "__main__":
    main()
