"""Make the data of the Countdown demo: numbers, a target, and the cold start's worked examples.

    python examples/countdown/make_data.py runs/demo/data

train.jsonl       rows to train on: nums, target
held_out.jsonl    rows to evaluate on, no one of which has the numbers and the target of a row in the other files
cold_start.jsonl  nums, target and a completion: a share of `--solved-share` is solved, the others are guesses with
                  random signs, most of which miss the target: they show the format and leave something to learn

The same arguments give the same files, byte for byte.
"""

import argparse
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Problem:
    """Sorted numbers, and a target that sums and differences of all of them reach."""

    nums: tuple[int, ...]
    target: int


def all_problems(*, count: int, largest: int) -> list[Problem]:
    """Every set of `count` numbers from 1 to `largest` with every positive target that can be reached."""
    return [
        Problem(nums, target)
        for nums in itertools.combinations_with_replacement(range(1, largest + 1), count)
        for target in sorted({total for total in signed_sums(nums) if total > 0})
    ]


def signed_sums(nums: Sequence[int]) -> Iterator[int]:
    """The totals of all choices of signs, less the one with minus signs only."""
    for signs in itertools.product((1, -1), repeat=len(nums)):
        if 1 in signs:
            yield sum(sign * number for sign, number in zip(signs, nums, strict=True))


def expression(nums: Sequence[int], subtracted: Sequence[int]) -> str:
    """The sum of `nums` with those at the places in `subtracted` taken away: `3+7-2`."""
    plus = [str(number) for place, number in enumerate(nums) if place not in subtracted]
    minus = [f"-{nums[place]}" for place in subtracted]
    return "+".join(plus) + "".join(minus)


def completion(nums: Sequence[int], subtracted: Sequence[int]) -> str:
    """What a model says: in its thoughts the numbers it takes away, then the expression: `<think>-2</think>…`."""
    taken = "".join(f"-{nums[place]}" for place in subtracted) or "-0"
    return f"<think>{taken}</think><answer>{expression(nums, subtracted)}</answer>"


def solution(nums: Sequence[int], target: int) -> list[int]:
    """The places of the numbers to take away: together half of what the sum of all is too large."""
    half = (sum(nums) - target) // 2
    return next(
        list(places)
        for size in range(len(nums))
        for places in itertools.combinations(range(len(nums)), size)
        if sum(nums[place] for place in places) == half
    )


def guess(nums: Sequence[int], rng: random.Random) -> list[int]:
    """Any places whose expression comes to something positive."""
    while True:
        subtracted = [place for place in range(len(nums)) if rng.random() < 0.5]
        if sum(nums) > 2 * sum(nums[place] for place in subtracted):
            return subtracted


def make_rows(problems: Sequence[Problem], num_rows: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Rows in rounds over the problems, each with its numbers in an order of its own."""
    for problem in itertools.islice(itertools.cycle(rng.sample(problems, len(problems))), num_rows):
        yield {"nums": rng.sample(problem.nums, len(problem.nums)), "target": problem.target}


def make_cold_start_rows(
    problems: Sequence[Problem], num_rows: int, rng: random.Random, *, solved_share: float
) -> Iterator[dict[str, Any]]:
    for row in make_rows(problems, num_rows, rng):
        nums = row["nums"]
        subtracted = solution(nums, row["target"]) if rng.random() < solved_share else guess(nums, rng)
        yield {**row, "completion": completion(nums, subtracted)}


def write_jsonl(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    lines = [json.dumps(row) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")
    print(f"{path}: {len(lines):,} rows")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write the three files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=3, help="numbers in a row")
    parser.add_argument("--largest", type=int, default=20, help="the largest number")
    parser.add_argument("--train-rows", type=int, default=10_000)
    parser.add_argument("--held-out-rows", type=int, default=1_000)
    parser.add_argument("--cold-start-rows", type=int, default=40_000)
    parser.add_argument("--solved-share", type=float, default=0.4, help="solved ones among the cold-start rows")
    arguments = parser.parse_args(argv)
    available = len(all_problems(count=arguments.count, largest=arguments.largest))
    if arguments.held_out_rows >= available:
        parser.error(f"there are {available:,} problems and --held-out-rows takes {arguments.held_out_rows:,}")
    return arguments


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    rng = random.Random(arguments.seed)
    problems = all_problems(count=arguments.count, largest=arguments.largest)
    rng.shuffle(problems)
    held_out, training = problems[: arguments.held_out_rows], problems[arguments.held_out_rows :]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    write_jsonl(arguments.folder / "held_out.jsonl", make_rows(held_out, len(held_out), rng))
    write_jsonl(arguments.folder / "train.jsonl", make_rows(training, arguments.train_rows, rng))
    write_jsonl(
        arguments.folder / "cold_start.jsonl",
        make_cold_start_rows(training, arguments.cold_start_rows, rng, solved_share=arguments.solved_share),
    )


if __name__ == "__main__":
    main()
