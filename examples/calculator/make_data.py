"""Make the data of the calculator game: pairs of numbers, and the cold start's games of a mediocre player.

    python -m examples.calculator.make_data runs/demo-episodes/data

train.jsonl       rows to train on: a, b
held_out.jsonl    rows to evaluate on, none of which is in the other files
cold_start.jsonl  conversations, one for each turn of the player, who asks the calculator in `--calls-share` of the
                  games only and copies its result rightly in `--copies-share` of these; any other answer is a number
                  near the right one. It shows the form of a call and of an answer, and leaves all the rest to learn

The same arguments give the same files, byte for byte.
"""

import argparse
import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from examples.calculator.game import Game, calc
from examples.countdown.make_data import write_jsonl

SMALLEST, LARGEST = 12, 99
FAR = 500
"""A number that is made up is at most so far from the right one."""
Row = dict[str, int]
Message = dict[str, Any]


def game_of(row: Row, rng: random.Random, *, calls_share: float, copies_share: float) -> list[Message]:
    """The messages of a whole game."""
    messages: list[Message] = [{"role": "user", "content": Game().reset(row, 0)}]
    answer = str(row["a"] * row["b"] + rng.randint(-FAR, FAR))
    if rng.random() < calls_share:
        expr = f"{row['a']}*{row['b']}"
        call = {"type": "function", "function": {"name": calc.__name__, "arguments": {"expr": expr}}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "content": calc(expr)})
        if rng.random() < copies_share:
            answer = messages[-1]["content"]
    return [*messages, {"role": "assistant", "content": answer}]


def turns_of(messages: list[Message]) -> Iterator[dict[str, list[Message]]]:
    """A row of the cold start for each message of the player, which is the last one: so each is learned once."""
    for count, message in enumerate(messages, start=1):
        if message["role"] == "assistant":
            yield {"messages": messages[:count]}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write the three files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out-rows", type=int, default=500)
    parser.add_argument("--cold-start-games", type=int, default=4_000)
    parser.add_argument("--calls-share", type=float, default=0.3)
    parser.add_argument("--copies-share", type=float, default=0.9)
    arguments = parser.parse_args(argv)
    rng = random.Random(arguments.seed)
    numbers = range(SMALLEST, LARGEST + 1)
    rows = [{"a": a, "b": b} for a, b in itertools.product(numbers, numbers)]
    rng.shuffle(rows)
    held_out, training = rows[: arguments.held_out_rows], rows[arguments.held_out_rows :]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    write_jsonl(arguments.folder / "held_out.jsonl", iter(held_out))
    write_jsonl(arguments.folder / "train.jsonl", iter(training))
    games = (
        game_of(row, rng, calls_share=arguments.calls_share, copies_share=arguments.copies_share)
        for row in itertools.islice(itertools.cycle(training), arguments.cold_start_games)
    )
    write_jsonl(arguments.folder / "cold_start.jsonl", (turn for game in games for turn in turns_of(game)))


if __name__ == "__main__":
    main()
