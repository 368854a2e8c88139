"""Cutting many rows into requests, whole groups together, and scoring them."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from grpo_proto import RewardSpec, ScoreRequest, ScoreResult

from .rows import Row
from .scorers import Scorer

BATCH = 256
"""Samples of a request, more when a group is larger: a reward of `completions` has to see all of a group."""
AT_ONCE = 2
"""Requests under way, so that workers need not wait for the next one."""
MAX_DEADLINE_S = 600.0
"""The longest that a server takes unless it was started with another `--max-timeout-s`."""


def cut(rows: Sequence[Row], *, keep_ungrouped_together: bool) -> list[list[int]]:
    """Positions of the rows of each request: one step, whole groups.

    Rows without a group are cut anywhere, or all stay in one request with `keep_ungrouped_together`.
    """
    steps: dict[int | None, dict[str | tuple[int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for position, row in enumerate(rows):
        alone = "" if keep_ungrouped_together else (position,)
        steps[row.step][alone if row.group is None else row.group].append(position)
    requests = []
    for groups in steps.values():
        request: list[int] = []
        for positions in groups.values():
            if request and len(request) + len(positions) > BATCH:
                requests.append(request)
                request = []
            request += positions
        requests.append(request)
    return requests


async def score_rows(
    scorer: Scorer,
    specs: Sequence[RewardSpec],
    rows: Sequence[Row],
    requests: Sequence[Sequence[int]],
    timeout_s: float,
) -> list[ScoreResult]:
    """One result for each row, in their order. Raises ConfigError and CommandFailed."""
    results: list[ScoreResult | None] = [None] * len(rows)
    places = asyncio.Semaphore(AT_ONCE)

    async def score(positions: Sequence[int]) -> None:
        async with places:
            response = await scorer.score(
                ScoreRequest(
                    rewards=list(specs),
                    samples=[rows[position].sample for position in positions],
                    step=rows[positions[0]].step,
                    timeout_s=timeout_s,
                    deadline_s=MAX_DEADLINE_S,
                )
            )
        for position, result in zip(positions, response.results, strict=True):
            results[position] = result

    try:
        async with asyncio.TaskGroup() as group:
            for positions in requests:
                group.create_task(score(positions))
    except* Exception as errors:
        raise errors.exceptions[0] from None
    return [result for result in results if result is not None]
