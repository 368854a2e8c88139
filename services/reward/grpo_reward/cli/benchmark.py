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
from .output import console, print_json, shortened
from .probe import MAX_HANGS, SLACK_S, Patience, Probe
from .requests import MAX_DEADLINE_S
from .rows import Row
from .scorers import Scorer, known_reward, known_rewards, open_scorer
from .statistics import percentile
from .try_reward import rows_for

MAX_SLOWDOWN = 5
"""How many times as long as alone a request may take beside others, so that one whose samples all hang has an end."""


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
        known_rewards(scorer, [spec])
        expected_s = await _warm_up(Probe(scorer, spec, known, Patience(options.timeout_s)), rows, options)
        load = _Load(scorer, spec, rows, batch=options.batch, timeout_s=options.timeout_s, expected_s=expected_s)
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
    if load.is_hopeless:
        raise CommandFailed(f"ended early after {report['statuses']['timeout']} time-outs, for instance {load.failure}")
    if not report["statuses"].get("ok") and not report["statuses"].get("unscorable"):
        raise CommandFailed(f"no score came: {load.failure}")
    return 0


async def _warm_up(probe: Probe, rows: Sequence[Row], options: argparse.Namespace) -> float:
    """One request's worth of samples, for cold caches and costs that are not known yet; seconds that it took.

    Raises CommandFailed when MAX_HANGS of them hang, or the first: each costs as much as a score may take.
    """
    samples = list(islice(cycle(row.sample for row in rows), options.batch))
    started = time.monotonic()
    for part in [samples] if probe.is_batch else [samples[:1], samples[1:]]:
        probe.patience.begin(MAX_HANGS if probe.seen else 1)
        scores = await probe.score(part, is_about_time=True)
        if probe.patience.is_over:
            hung = next(sample for sample, score in zip(part, scores, strict=True) if score.status == "timeout")
            more = f", and {probe.patience.hangs - 1} more" if probe.patience.hangs > 1 else ""
            raise CommandFailed(
                f"no score within {options.timeout_s:g} s (--timeout-s) for {shortened(hung.completion)}{more}; "
                f"the other samples were left out; grpo-reward test {options.name} looks for what hangs"
            )
    return time.monotonic() - started


class _Load:
    """Requests of equal size, made of the rows over and over."""

    def __init__(
        self,
        scorer: Scorer,
        spec: RewardSpec,
        rows: Sequence[Row],
        *,
        batch: int,
        timeout_s: float,
        expected_s: float,
    ):
        """`expected_s`: about how long one request takes alone."""
        self._scorer, self._spec, self._batch, self._timeout_s = scorer, spec, batch, timeout_s
        self._expected_s = expected_s
        self._samples = cycle([row.sample.model_copy(update={"id": None}) for row in rows])
        self._latencies_s: list[float] = []
        self._statuses: Counter[str] = Counter()
        self.failure: str | None = None

    @property
    def is_hopeless(self) -> bool:
        return self._statuses["timeout"] >= MAX_HANGS

    async def _once(self, deadline_s: float) -> None:
        request = ScoreRequest(
            rewards=[self._spec],
            samples=list(islice(self._samples, self._batch)),
            timeout_s=self._timeout_s,
            deadline_s=deadline_s,
        )
        started = time.monotonic()
        response = await self._scorer.score(request)
        self._latencies_s.append(time.monotonic() - started)
        for sample, result in zip(request.samples, response.results, strict=True):
            score = result.rewards[self._spec.name]
            self._statuses[score.status] += 1
            if score.status in ("timeout", "error") and self.failure is None:
                self.failure = f"{score.detail}: {shortened(sample.completion)}"

    async def run(self, duration_s: float, concurrent: int) -> dict[str, Any]:
        """Raises ConfigError and CommandFailed."""
        name = self._spec.name
        deadline_s = min(MAX_SLOWDOWN * concurrent * self._expected_s + self._timeout_s + SLACK_S, MAX_DEADLINE_S)
        before = self._inside(name)
        started = time.monotonic()

        async def lane() -> None:
            while time.monotonic() < started + duration_s and not self.is_hopeless:
                await self._once(deadline_s)

        try:
            async with asyncio.TaskGroup() as lanes:
                for _ in range(concurrent):
                    lanes.create_task(lane())
        except ExceptionGroup as errors:
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
