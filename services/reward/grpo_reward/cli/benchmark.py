"""`grpo-reward bench`: how many scores a second, how late, and how much of it inside the reward."""

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any

from grpo_proto import RewardSpec, ScoreRequest

from .options import CommandFailed, CommandParser, existing_file, own_params, positive, seconds
from .output import console, print_json
from .requests import MAX_DEADLINE_S
from .rows import Row
from .scorers import Scorer, known_reward, open_scorer
from .statistics import percentile
from .try_reward import rows_for


def run(arguments: Sequence[str]) -> int:
    """0 when scores came, 1 when none did."""
    parser = CommandParser("bench", "Measure a reward: scores per second, latency of a batch, time inside the reward.")
    parser.add_argument("name", metavar="NAME", help="A reward; a built-in one has examples and needs no file.")
    parser.add_argument("--data", type=existing_file, metavar="FILE.jsonl", help="Rows to score, again and again.")
    parser.add_params("NAME=VALUE")
    parser.add_argument("--seconds", type=seconds, default=5.0, metavar="S", help="How long (default: 5).")
    parser.add_argument("--batch", type=positive, default=64, metavar="N", help="Samples of a request (default: 64).")
    parser.add_argument(
        "--concurrent", type=positive, default=2, metavar="N", help="Requests under way at once (default: 2)."
    )
    parser.add_argument("--timeout-s", type=seconds, default=10.0, metavar="S", help="For one score (default: 10).")
    parser.add_place()
    return asyncio.run(_bench(parser.parse(arguments)))


async def _bench(options: argparse.Namespace) -> int:
    async with open_scorer(options) as scorer:
        known = known_reward(scorer, options.name)
        rows, example = rows_for(options, known)
        spec = RewardSpec(name=options.name, params={**example.params, **own_params(options.name, options.param)})
        load = _Load(scorer, spec, rows, batch=options.batch, timeout_s=options.timeout_s)
        await load.once()  # the first finds cold caches, and a scorer that knows no costs yet
        measured = await load.run(options.seconds, options.concurrent)
    report = {
        "reward": options.name,
        "params": spec.params,
        "where": scorer.place,
        "workers": scorer.workers,
        "batch": options.batch,
        "concurrent": options.concurrent,
        "distinct_samples": len(rows),
        **measured,
    }
    if options.json:
        print_json(report)
    else:
        _show(report)
    if not report["statuses"].get("ok") and not report["statuses"].get("unscorable"):
        raise CommandFailed(f"no score came: {load.failure}")
    return 0


class _Load:
    """Requests of equal size, made of the rows over and over."""

    def __init__(self, scorer: Scorer, spec: RewardSpec, rows: Sequence[Row], *, batch: int, timeout_s: float):
        self._scorer, self._spec, self._batch, self._timeout_s = scorer, spec, batch, timeout_s
        self._samples = cycle([row.sample.model_copy(update={"id": None}) for row in rows])
        self._latencies_s: list[float] = []
        self._statuses: Counter[str] = Counter()
        self.failure: str | None = None

    async def once(self) -> None:
        request = ScoreRequest(
            rewards=[self._spec],
            samples=list(islice(self._samples, self._batch)),
            timeout_s=self._timeout_s,
            deadline_s=MAX_DEADLINE_S,
        )
        started = time.monotonic()
        response = await self._scorer.score(request)
        self._latencies_s.append(time.monotonic() - started)
        for result in response.results:
            score = result.rewards[self._spec.name]
            self._statuses[score.status] += 1
            self.failure = score.detail or self.failure

    async def run(self, duration_s: float, concurrent: int) -> dict[str, Any]:
        """Raises ConfigError and CommandFailed."""
        self._latencies_s.clear()
        self._statuses.clear()
        name = self._spec.name
        before = self._inside(name)
        started = time.monotonic()

        async def lane() -> None:
            while time.monotonic() < started + duration_s:
                await self.once()

        try:
            async with asyncio.TaskGroup() as lanes:
                for _ in range(concurrent):
                    lanes.create_task(lane())
        except* Exception as errors:
            raise errors.exceptions[0] from None
        elapsed_s = time.monotonic() - started
        scores = len(self._latencies_s) * self._batch
        after = self._inside(name)
        return {
            "seconds": elapsed_s,
            "scores": scores,
            "statuses": dict(self._statuses),
            "scores_per_s": scores / elapsed_s,
            "batch_p50_s": percentile(self._latencies_s, 0.5),
            "batch_p99_s": percentile(self._latencies_s, 0.99),
            "inside_s": _per_score(before, after) if before and after else None,
        }

    def _inside(self, name: str) -> tuple[float, int] | None:
        inside = self._scorer.inside
        return (inside.seconds[name], inside.scores[name]) if inside else None


def _show(report: Mapping[str, Any]) -> None:
    out = console()
    statuses = ", ".join(f"{count:,} {status}" for status, count in report["statuses"].items())
    inside = report["inside_s"]
    lines = [
        ("reward", report["reward"]),
        ("where", report["where"]),
        (
            "load",
            f"{report['concurrent']} requests of {report['batch']} samples, {report['distinct_samples']} distinct",
        ),
        ("scores", f"{report['scores']:,} in {report['seconds']:.1f} s: {statuses}"),
        ("scores per second", f"{report['scores_per_s']:,.0f}"),
        ("latency of a request", f"p50 {1e3 * report['batch_p50_s']:.1f} ms, p99 {1e3 * report['batch_p99_s']:.1f} ms"),
        ("inside the reward", f"{1e6 * inside:,.1f} µs a score" if inside is not None else "only its server knows"),
    ]
    for name, value in lines:
        out.print(f"{name:22}{value}", soft_wrap=True)


def _per_score(before: tuple[float, int], after: tuple[float, int]) -> float | None:
    """Seconds of one score; None when none has come back, because each killed its worker."""
    scores = after[1] - before[1]
    return (after[0] - before[0]) / scores if scores else None
