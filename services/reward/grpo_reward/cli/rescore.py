"""`grpo-reward score`: score a file of completions, and compare with the scores that are in it."""

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from grpo_proto import RewardSpec, ScoreResult
from grpo_proto.messages.reward import ScoreStatus

from ..config import ConfigError
from .comparison import advantage_changes, agreement, most_different, old_scores
from .options import CommandFailed, CommandParser, existing_file, not_negative, reward_specs, seconds
from .output import NUMBER_COLUMNS, console, print_json, say, table
from .requests import Rescoring
from .rows import Row, check_columns, files_of, read_rows
from .scorers import Scorer, known_rewards, open_scorer
from .statistics import mean, std

STATUSES = get_args(ScoreStatus)


def run(arguments: Sequence[str]) -> int:
    """0 when every score came, also where that is null; 1 when a reward failed or was late."""
    parser = CommandParser("score", "Score a file of completions, and compare with the scores that are in it.")
    parser.usage = "grpo-reward score FILE.jsonl --rewards NAME[:WEIGHT],… [more options]"
    parser.add_argument("file", nargs="*", metavar="FILE.jsonl", help="One sample a line; - for what comes in.")
    parser.add_argument(
        "--rewards", action="append", metavar="NAME[:WEIGHT],…", help="Such as accuracy,format:0.1; required."
    )
    parser.add_params("REWARD.NAME=VALUE")
    parser.add_argument(
        "--dataset",
        type=existing_file,
        metavar="FILE.jsonl",
        help="Where the columns are, at the line that `row` of a sample counts from 0: the dataset of a run.",
    )
    parser.add_argument("--out", type=Path, metavar="OUT.jsonl", help="Write id, total and rewards of every sample.")
    parser.add_argument(
        "--top", type=not_negative, default=10, metavar="N", help="Show the samples that differ most (default: 10)."
    )
    parser.add_argument("--timeout-s", type=seconds, default=10.0, metavar="S", help="For one score (default: 10).")
    parser.add_argument(
        "--keep-going", action="store_true", help="Also when all of the first samples had no score in time."
    )
    parser.add_place()
    options = parser.parse(arguments)
    options.file = _only_file(options, parser)
    if options.out is not None:
        _check_out(options)
    specs = reward_specs(",".join(options.rewards), options.param)
    return asyncio.run(_score(options, specs))


def _only_file(options: argparse.Namespace, parser: CommandParser) -> Path:
    """Raises ConfigError, which also puts right what was meant for --rewards."""
    example = "grpo-reward score FILE.jsonl --rewards accuracy,format:0.1"
    if not options.rewards:
        parser.error(f"say with --rewards what to score with: {example}")
    if not options.file:
        parser.error(f"say which file: {example}")
    *more, last = options.file
    if more:
        more = [word for word in options.file if not Path(word).exists()]
        if 0 < len(more) < len(options.file):
            rewards = ",".join([*options.rewards, *more])
            parser.error(f"there is no file {more[0]}; several rewards have commas between them: --rewards {rewards}")
        parser.error(f"one file at a time, not {len(options.file)}: cat FILE.jsonl … | grpo-reward score - …")
    try:
        return existing_file(last)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))


def _check_out(options: argparse.Namespace) -> None:
    """Check `--out` before anything is scored. Raises ConfigError."""
    out: Path = options.out
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")
    for name, source in (*(("FILE.jsonl", file) for file in files_of(options.file)), ("--dataset", options.dataset)):
        if source is not None and out.exists() and out.samefile(source):
            raise ConfigError(f"--out {out} is {name}, too: it would be lost; give it another name")


async def _score(options: argparse.Namespace, specs: Sequence[RewardSpec]) -> int:
    async with open_scorer(options) as scorer:
        known = known_rewards(scorer, specs)  # first: a file may be long
        rows = await asyncio.to_thread(read_rows, options.file, dataset=options.dataset)
        check_columns(rows, {reward.description.name: reward.description.columns for reward in known})
        compared = any(reward.batch for reward in known)
        rescoring = Rescoring(
            scorer,
            specs,
            rows,
            compared=compared,
            timeout_s=options.timeout_s,
            gives_up=not options.keep_going,
            say=say,
        )
        started = time.monotonic()
        try:
            results = await rescoring.run()
        except (ConfigError, CommandFailed, asyncio.CancelledError):
            _keep(options.out, rows, rescoring.results)
            raise
        report = _report(scorer, specs, rows, results, options.top) | {"elapsed_s": time.monotonic() - started}
    report = {"file": str(options.file), **report}
    if options.json:
        print_json(report)
    else:
        _show(report)
    if options.out:
        _write(options.out, rows, results)
    failed = sum(statuses["timeout"] + statuses["error"] for statuses in (r["statuses"] for r in report["rewards"]))
    if unscorable := sum(reward["statuses"]["unscorable"] for reward in report["rewards"]):
        total = len(rows) * len(specs)
        say(f"{unscorable} of {total} scores are null, for instance {_first(rows, results, 'unscorable')}")
    if failed:
        say(f"error: {failed} scores failed, for instance {_first(rows, results, 'timeout', 'error')}")
    return 1 if failed else 0


def _keep(out: Path | None, rows: Sequence[Row], results: Sequence[ScoreResult | None]) -> None:
    """Write the scores of a file that is not scored to its end, or say how many: none is lost without a word."""
    scored = sum(result is not None for result in results)
    if not scored:
        return
    if out is not None:
        _write(out, rows, results)
    say(f"{scored:,} of {len(rows):,} samples were scored; {f'they are in {out}' if out else '--out would keep them'}")


def _report(
    scorer: Scorer, specs: Sequence[RewardSpec], rows: Sequence[Row], results: Sequence[ScoreResult], top: int
) -> dict[str, Any]:
    new: dict[str, list[float | None]] = {
        spec.name: [result.rewards[spec.name].score for result in results] for spec in specs
    }
    new["total"] = [result.total for result in results]
    old = old_scores(rows, new)
    inside = scorer.inside
    return {
        "where": scorer.place,
        "samples": len(rows),
        "groups": len({row.group for row in rows if row.group is not None}),
        "rewards": [
            {
                "name": spec.name,
                "weight": spec.weight,
                "params": spec.params,
                **_summary(new[spec.name]),
                "statuses": _statuses(spec.name, results),
                "seconds": inside.seconds[spec.name] if inside else None,
            }
            for spec in specs
        ],
        "total": _summary(new["total"]),
        "agreement": {name: agreement(old[name], new[name]) for name in old},
        "advantages": advantage_changes(rows, old["total"], new["total"]) if "total" in old else None,
        "most_different": most_different(rows, old, new, top),
    }


def _summary(scores: Sequence[float | None]) -> dict[str, Any]:
    """Over the scores there are: null takes no part."""
    found = [score for score in scores if score is not None]
    return {
        "scored": len(found),
        "mean": mean(found),
        "std": std(found) if found else None,
        "min": min(found, default=None),
        "max": max(found, default=None),
    }


def _statuses(name: str, results: Sequence[ScoreResult]) -> dict[str, int]:
    found = [result.rewards[name].status for result in results]
    return {status: found.count(status) for status in STATUSES}


def _first(rows: Sequence[Row], results: Sequence[ScoreResult], *statuses: ScoreStatus) -> str:
    """The first with one of `statuses`, of which there must be one: where it is, and why."""
    found = (
        f"{name} of {row.where}: {score.status}{f': {score.detail}' if score.detail else ''}"
        for row, result in zip(rows, results, strict=True)
        for name, score in result.rewards.items()
        if score.status in statuses
    )
    return next(found)


def _write(path: Path, rows: Sequence[Row], results: Sequence[ScoreResult | None]) -> None:
    """Raises CommandFailed."""
    try:
        with path.open("w", encoding="utf-8") as file:
            for row, result in zip(rows, results, strict=True):
                if result is None:
                    continue
                rewards = {
                    name: score.model_dump(include={"score", "status", "detail"}, exclude_defaults=True)
                    for name, score in result.rewards.items()
                }
                line = {"id": row.name, "total": result.total, "rewards": rewards}
                file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror or error}") from None


def _show(report: dict[str, Any]) -> None:
    out = console(NUMBER_COLUMNS)
    groups = f", {report['groups']:,} groups" if report["groups"] else ""
    out.print(
        f"{report['file']}: {report['samples']:,} samples{groups}, {report['elapsed_s']:.2f} s ({report['where']})"
    )
    numbers = ("mean", "std", "min", "max")
    lines = [
        (
            reward["name"],
            reward["weight"],
            *(reward[key] for key in numbers),
            *reward["statuses"].values(),
            reward["seconds"],
        )
        for reward in report["rewards"]
    ]
    lines.append(("total", None, *(report["total"][key] for key in numbers), report["total"]["scored"], *[None] * 4))
    out.print(table("", ("reward", "weight", *numbers, *STATUSES, "seconds"), lines))
    if report["agreement"]:
        names = ("pairs", "equal", "mean_difference", "spearman", "lost", "gained")
        lines = [(name, *(found[key] for key in names)) for name, found in report["agreement"].items()]
        heads = ("reward", "pairs", "equal", "mean |Δ|", "rank correlation", "lost", "gained")
        out.print()
        out.print(table("Against the scores in the file", heads, lines))
    if changes := report["advantages"]:
        out.print()
        out.print(
            f"Advantages within {changes['groups']:,} groups: mean |Δ| {_number(changes['mean_absolute_change'])}, "
            f"another sign in {_percent(changes['sign_changes'])} of {changes['samples']:,} samples; "
            f"{_percent(changes['became_constant'])} of the groups become constant, "
            f"{_percent(changes['stopped_being_constant'])} stop being it",
            soft_wrap=True,
        )
    if report["most_different"]:
        rows = [
            tuple(entry[key] for key in ("id", "reward", "completion", "old", "new"))
            for entry in report["most_different"]
        ]
        out.print()
        out.print(table("Differ most", ("sample", "reward", "completion", "old", "new"), rows, left=3))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
