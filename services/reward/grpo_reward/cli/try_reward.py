"""`grpo-reward test`: does a reward do what it should, always, in time, and not for nothing?"""

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo_proto import RewardSpec, ScoreSample

from ..config import ConfigError
from ..faults import printable
from ..refusal import nearest
from .checks import Check, determinism_checks, gold_check, order_checks, range_check, time_check
from .examples import EXAMPLES, Example
from .fuzzing import Fuzzer, cheap_names
from .ideas import mutated, with_completion
from .options import CommandParser, existing_file, not_negative, number, own_params, seconds
from .output import console, print_json
from .probe import Patience, Probe
from .rows import Row, check_columns, read_rows, rows_of
from .scorers import KnownReward, known_reward, known_rewards, open_scorer

MAX_SAMPLES = 100
"""Samples of the checks that score everything several times."""
NUM_MUTATED = 30
"""Copies of such samples that are changed at random and added: not only right completions are looked at."""
MAX_SAME_ERROR = 3
"""Lines of a check about one error: a reward that always raises would fill the screen with it."""
AFTER_GOLD = (
    "same again",
    "same in a new process",
    "any order",
    "any batch",
    "time limit",
    "no hang",
    "no crash",
    "no cheap full score",
    "range",
)
"""The checks that need scores to look at, in their order."""


def run(arguments: Sequence[str]) -> int:
    """0 when every check passed or was left out, 1 when one failed."""
    parser = CommandParser(
        "test", "Check a reward: gold answers, range, determinism, order, time, hangs, crashes, cheap full scores."
    )
    parser.add_argument("name", metavar="NAME", help="A reward; a built-in one has examples and needs no file.")
    parser.add_argument("--data", type=existing_file, metavar="FILE.jsonl", help="Rows whose completion is right.")
    parser.add_argument(
        "--gold",
        metavar="COLUMN",
        help="The right completion: a column, or a text such as '<answer>{solution}</answer>'.",
    )
    parser.add_params("NAME=VALUE")
    parser.add_argument("--full", type=number, metavar="SCORE", help="Score of a right completion (default: 1).")
    parser.add_argument("--range", type=number, nargs=2, metavar=("LOW", "HIGH"), help="Where every score must be.")
    parser.add_argument("--time-limit-s", type=seconds, default=1.0, metavar="S", help="For one score (default: 1).")
    parser.add_argument(
        "--fuzz", type=not_negative, default=200, metavar="N", help="Random completions (default: 200)."
    )
    parser.add_argument("--seed", type=not_negative, default=0, metavar="S", help="Of what is random (default: 0).")
    parser.add_argument("--allow", nargs="+", default=[], metavar="FINDING", help="Findings that are no faults.")
    parser.add_place()
    options = parser.parse(arguments)
    if options.gold is not None and options.data is None:
        raise ConfigError("--gold says how the rows of a file are right: give --data FILE.jsonl, too")
    for name in set(options.allow) - (names := cheap_names()):
        raise ConfigError(f"--allow {name!r}: no finding is called so; {nearest(name, names)}")
    return asyncio.run(_test(options))


async def _test(options: argparse.Namespace) -> int:
    started = time.monotonic()
    async with open_scorer(options) as scorer:
        known = known_reward(scorer, options.name)
        rows, example = rows_for(options, known)
        spec = RewardSpec(name=options.name, params={**example.params, **own_params(options.name, options.param)})
        patience = Patience(options.time_limit_s)
        known_rewards(scorer, [spec])
        probe = Probe(scorer, spec, known, patience)
        fresh = None
        if options.url is None:
            async with open_scorer(options, workers=1) as other:
                fresh = Probe(other, spec, known, patience)
                checks = await _checks(options, probe, fresh, rows, example)
        else:
            checks = await _checks(options, probe, None, rows, example)
    report = {
        "reward": options.name,
        "params": spec.params,
        "where": scorer.place,
        "rows": len(rows),
        "seed": options.seed,
        "passed": all(check.status != "fail" for check in checks),
        "checks": [check.as_json() for check in checks],
        "elapsed_s": time.monotonic() - started,
    }
    if options.json:
        print_json(report)
    else:
        _show(report)
    return 0 if report["passed"] else 1


def rows_for(options: argparse.Namespace, known: KnownReward) -> tuple[list[Row], Example]:
    """The rows of `--data`, or the built-in ones. Raises ConfigError when there are neither, and CommandFailed."""
    name = known.description.name
    example = EXAMPLES.get(name)
    if options.data is not None:
        rows = read_rows(options.data, gold=getattr(options, "gold", None), with_expect=True)
        check_columns(rows, {name: known.description.columns})
        # Params of ours are for our rows; what scores are possible, and what is allowed, stays true with other rows.
        mine = example or Example(rows=[], low=float("-inf"))
        return rows, Example(rows=[], full=mine.full, low=mine.low, allow=mine.allow)
    if example is None:
        columns = "".join(f', "{column}": …' for column in known.description.columns)
        raise ConfigError(
            f"there are no built-in examples for {name}: give --data FILE.jsonl, one right completion a line, "
            f'{{"completion": "…"{columns}}}'
        )
    return rows_of(f"example of {name}", list(enumerate(example.rows, start=1)), with_expect=True), example


async def _checks(
    options: argparse.Namespace, probe: Probe, fresh: Probe | None, rows: Sequence[Row], example: Example
) -> list[Check]:
    chance = random.Random(options.seed)
    full = example.full if options.full is None else options.full
    low, high = options.range or (None if example.low == float("-inf") else example.low, full)
    gold, right = await gold_check(probe, rows, full)
    if all(seen.score.status == "timeout" for seen in probe.seen):
        return [gold, *(Check(name, "skip", "left out: no row had a score in time") for name in AFTER_GOLD)]
    samples = _some_samples(rows, chance)
    same, samples, scores = await determinism_checks(probe, fresh, samples)
    order = await order_checks(probe, samples, scores, chance)
    in_time = await time_check(probe, rows)
    fuzzer = Fuzzer(probe, full, allowed=example.allow | set(options.allow))
    await fuzzer.run(rows, right, has_gold=_has_gold(probe.known, rows), num_random=options.fuzz, chance=chance)
    return [gold, *same, *order, in_time, *fuzzer.checks(), range_check(probe.seen, low, high)]


def _some_samples(rows: Sequence[Row], chance: random.Random) -> list[ScoreSample]:
    """Samples of the rows, and of rows with random changes."""
    chosen = [row.sample for row in (rows if len(rows) <= MAX_SAMPLES else chance.sample(list(rows), MAX_SAMPLES))]
    others = [chance.choice(chosen) for _ in range(NUM_MUTATED)]
    return chosen + [with_completion(sample, mutated(chance, [sample.completion])) for sample in others]


def _has_gold(known: KnownReward, rows: Sequence[Row]) -> bool:
    """Whether the reward reads columns: then there is something that a completion can be right about."""
    if known.description.columns:
        return True
    reads_some = known.loaded is not None and bool(known.loaded.columns or known.loaded.all_columns)
    return reads_some and any(row.sample.columns for row in rows)


def _show(report: Mapping[str, Any]) -> None:
    out = console()
    for check in report["checks"]:
        out.print(f"{check['status']:5} {check['name']:22}{check['detail']}", soft_wrap=True)
        for line in _counter_examples(check["examples"]):
            out.print(line, soft_wrap=True)
    failed = [check["name"] for check in report["checks"] if check["status"] == "fail"]
    verdict = f"failed: {', '.join(failed)}" if failed else "passed"
    out.print(
        f"{report['reward']} {verdict} ({report['rows']} rows, seed {report['seed']}, {report['elapsed_s']:.1f} s)"
    )


def _counter_examples(examples: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line each; of those with one and the same error, which are often all there are, the first few."""
    seen = Counter[str]()
    for found in examples:
        cause = found.get("detail", "") if found["status"] == "error" else None
        if cause is None or seen[cause] < MAX_SAME_ERROR:
            yield _counter_example(found)
        if cause is not None:
            seen[cause] += 1
    for cause, times in seen.items():
        if times > MAX_SAME_ERROR:
            yield printable(
                f"        and {times - MAX_SAME_ERROR} more with the same error, which --json lists: {cause}"
            )


def _counter_example(found: Mapping[str, Any]) -> str:
    """`      row score 0 instead of 1: '<answer>…'`"""
    where = found.get("idea") or found.get("row") or ""
    times = f" ({found['times']} times)" if found.get("times", 1) > 1 else ""
    score = found["status"] if found["score"] is None else f"score {found['score']:g}"
    instead = f" instead of {_expected(found['expected'])}" if "expected" in found else ""
    detail = f" ({found['detail']})" if "detail" in found else ""
    return printable(f"        {where}{times}{': ' if where else ''}{score}{instead}{detail}: {found['completion']}")


def _expected(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "unscorable" if value is None else str(value)
