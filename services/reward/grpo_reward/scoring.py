"""One request: check it, cut it into chunks, have them scored, add up the totals."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from grpo_proto import RewardScore, RewardSpec, ScoreRequest, ScoreResponse, ScoreResult, ScoreSample
from grpo_proto.messages.reward import MESSAGES
from grpo_proto.totals import total_score

from .cancellation import leaves_no_circle
from .costs import Costs
from .executors.base import Chunk, Executor, ExecutorUnavailable, InvalidParams, LoadedReward, Pace
from .extras import MAX_REMEMBERED_BYTES, AnswerExtras, Extras, extra_bytes
from .faults import shown
from .memo import Memo
from .metrics import Metrics
from .refusal import Refusal, busy, nearest, shutting_down

UNSCORED = "not scored within the request's deadline"
"""Beginning of the detail of a score that there was no time for; a score that hung has another."""
LARGE_ANSWER_SCORES, BREATH_S = 4_000, 0.01
"""An answer of so many takes some milliseconds of the event loop; after each, others have their turn for so long."""
MAX_LARGE_SCORES = 2**20
"""Most scores of all large requests at once: about a kilobyte each, and the collector goes through all of them."""
MAX_CHUNK_SCORES = 512
"""Most scores of a chunk, however cheap: so many logs may be in memory before they are counted, for each worker."""


class Scoring:
    """Scores requests with an executor, in chunks whose size follows from what a score costs."""

    def __init__(
        self,
        executor: Executor,
        metrics: Metrics,
        *,
        costs: Costs | None = None,
        memo: Memo | None = None,
        extras: Extras | None = None,
    ):
        self._executor, self._metrics, self._memo = executor, metrics, memo
        self._costs = costs or Costs()
        self._extras = extras or Extras()
        self._deadlines: set[asyncio.Timeout] = set()
        self._draining: float | None = None
        self._answering = asyncio.Lock()
        self._large_scores = 0

    @property
    def draining(self) -> bool:
        return self._draining is not None

    def drain(self, grace_s: float) -> None:
        """The server ends: what is not scored in `grace_s` is given up, and its clients are told to go elsewhere."""
        self._draining = asyncio.get_running_loop().time() + grace_s
        for deadline in self._deadlines:
            when = deadline.when()
            if when is not None and not deadline.expired():
                deadline.reschedule(min(when, self._draining))

    @leaves_no_circle
    async def score(self, request: ScoreRequest) -> ScoreResponse:
        """One result for every sample, in their order. Raises Refusal."""
        started = time.monotonic()
        self._check(request)
        pieces = [
            _Piece(specs, request, [self._executor.rewards[spec.name] for spec in specs])
            for specs in self._groups(request.rewards)
        ]
        num_scores = len(request.samples) * len(request.rewards)
        self._metrics.queued.inc(num_scores)
        try:
            with self._room(num_scores):
                with self._extras.answer() as extras:
                    late = await self._run(pieces, request.deadline_s, extras) if request.samples else False
                if late:
                    if self.draining:
                        raise shutting_down()
                    self._metrics.deadlines.inc()
                async with self._turn_to_answer(num_scores):
                    return self._response(request, pieces, elapsed_s=time.monotonic() - started)
        finally:
            self._metrics.queued.dec(num_scores)

    @contextlib.contextmanager
    def _room(self, num_scores: int) -> Iterator[None]:
        """Raises Refusal 429 for a large request when others of that kind have as many scores as may be in memory."""
        large = num_scores if num_scores >= LARGE_ANSWER_SCORES else 0
        if large and self._large_scores and self._large_scores + large > MAX_LARGE_SCORES:
            raise busy(f"{self._large_scores} scores of large requests are being made, as many as this server takes")
        self._large_scores += large
        try:
            yield
        finally:
            self._large_scores -= large

    @contextlib.asynccontextmanager
    async def _turn_to_answer(self, num_scores: int) -> AsyncIterator[None]:
        """Waits for: the large answers before this one, of which thirty at once would hold up everybody for seconds.

        Unblocked by: each of them, when it is made and others have had their turn.
        """
        if num_scores < LARGE_ANSWER_SCORES:
            yield
            return
        async with self._answering:
            yield
            await asyncio.sleep(BREATH_S)

    def _response(self, request: ScoreRequest, pieces: "list[_Piece]", *, elapsed_s: float) -> ScoreResponse:
        """Empties `pieces`."""
        unscored = RewardScore(score=None, status="timeout", detail=f"{UNSCORED} of {request.deadline_s:g} s")
        columns = {name: column for piece in pieces for name, column in piece.table(unscored).items()}
        # TaskGroup of Python 3.11, once cancelled, is in a cycle with frames that see this list: large requests would
        # stay until the collector comes by.
        pieces.clear()
        names = [spec.name for spec in request.rewards]
        rows = zip(*(columns[name] for name in names), strict=True)
        results = [
            ScoreResult(
                id=sample.id or str(position),
                total=total_score(request.rewards, scores),
                rewards=scores,
            )
            for position, (sample, row) in enumerate(zip(request.samples, rows, strict=True))
            for scores in [dict(zip(names, row, strict=True))]
        ]
        for name, column in columns.items():
            self._metrics.count_scores(name, column)
        hashes = {spec.name: self._executor.rewards[spec.name].description.code_hash for spec in request.rewards}
        return ScoreResponse(results=results, elapsed_s=elapsed_s, code_hashes=hashes)

    def _check(self, request: ScoreRequest) -> None:
        if self.draining:
            raise shutting_down()
        if self._executor.problem is not None:
            raise Refusal(503, "not_ready", self._executor.problem, retryable=True)
        for spec in request.rewards:
            loaded = self._executor.rewards.get(spec.name)
            if loaded is None:
                hint = nearest(spec.name, self._executor.rewards)
                raise Refusal(422, "unknown_reward", f"there is no reward {shown(spec.name)}", hint=hint)
            if loaded.description.unavailable is not None:
                raise Refusal(
                    422, "reward_unavailable", f"{spec.name} is not computed here: {loaded.description.unavailable}"
                )
            _check_params(spec, loaded)
            for position, sample in enumerate(request.samples):
                _check_sample(loaded, position, sample)

    def _groups(self, specs: Sequence[RewardSpec]) -> Iterator[list[RewardSpec]]:
        """Rewards that share chunks: the cheap built-in ones; every other is alone.

        What a plugin leaves behind is looked for after each chunk, so that it reaches no other reward.
        """
        shared = []
        for spec in specs:
            loaded = self._executor.rewards[spec.name]
            if not loaded.batch and not loaded.of_plugin and self._costs.is_cheap(spec):
                shared.append(spec)
            else:
                yield [spec]
        if shared:
            yield shared

    async def _run(self, pieces: Sequence["_Piece"], deadline_s: float, extras: AnswerExtras) -> bool:
        """Score all pieces; True when the deadline came first."""
        until = asyncio.get_running_loop().time() + deadline_s
        deadline = asyncio.timeout_at(until if self._draining is None else min(until, self._draining))
        try:
            async with deadline:
                self._deadlines.add(deadline)
                await self._run_lanes(pieces, extras)
        except TimeoutError:
            return True
        finally:
            self._deadlines.discard(deadline)
        return False

    async def _run_lanes(self, pieces: Sequence["_Piece"], extras: AnswerExtras) -> None:
        """No more lanes than workers: a large request waits behind its own chunks, not others behind it."""
        try:
            async with asyncio.TaskGroup() as lanes:
                for _ in range(min(self._executor.workers, sum(piece.most_chunks for piece in pieces))):
                    lanes.create_task(self._lane(pieces, extras))
        except ExceptionGroup as group:
            expected, others = group.split((InvalidParams, ExecutorUnavailable))
            if others is not None or expected is None:
                raise
            error = expected.exceptions[0]
        else:
            return
        if isinstance(error, InvalidParams):
            raise Refusal(422, "invalid_param", f"params of {error}", hint="GET /v1/rewards has their schema")
        raise shutting_down() if self.draining else Refusal(503, "not_ready", str(error), retryable=True)

    @leaves_no_circle
    async def _lane(self, pieces: Sequence["_Piece"], extras: AnswerExtras) -> None:
        for piece in pieces:
            while (chunk := piece.next_chunk(self._costs, self._executor.workers)) is not None:
                try:
                    if self._memo is None:
                        await self._executor.score(chunk)
                        self._learn(chunk, [len(chunk.samples)] * len(chunk.rewards))
                    else:
                        await self._score_unknown(chunk, self._memo)
                finally:
                    extras.bound(chunk.scores)

    async def _score_unknown(self, chunk: Chunk, memo: Memo) -> None:
        keys = memo.recall(chunk, self._executor.rewards)
        unknown = chunk.open_items()
        self._metrics.remembered.inc(chunk.num_items - len(unknown))
        if not unknown:
            await asyncio.sleep(0)  # others have their turn
            return
        try:
            await self._executor.score(chunk)
        finally:
            sizes = [extra_bytes(score) if score else 0 for score in chunk.scores]
            short = [key if size <= MAX_REMEMBERED_BYTES else b"" for key, size in zip(keys, sizes, strict=False)]
            memo.remember(chunk, short)
        if chunk.batch:
            self._learn(chunk, [len(chunk.samples)])
        else:
            width = len(chunk.rewards)
            self._learn(chunk, [sum(item % width == position for item in unknown) for position in range(width)])

    def _learn(self, chunk: Chunk, num_samples: Sequence[int]) -> None:
        """`num_samples`: for each reward of the chunk how many samples took its seconds."""
        for spec, count in zip(chunk.rewards, num_samples, strict=True):
            if count and spec.name in chunk.seconds:
                self._costs.learn(spec.name, chunk.seconds[spec.name] / count)
        for name, seconds in chunk.seconds.items():
            self._metrics.score_seconds.labels(name).inc(seconds)


class _Piece:
    """The samples of a request with one group of rewards, handed out chunk by chunk."""

    def __init__(self, specs: list[RewardSpec], request: ScoreRequest, loaded: Sequence[LoadedReward]):
        self.specs = specs
        self._request = request
        self._batch = any(reward.batch for reward in loaded)
        self._fields = sorted({field for reward in loaded for field in reward.fields})
        self._columns = {column for reward in loaded for column in reward.columns}
        self._all_columns = any(reward.all_columns for reward in loaded)
        self._next = 0
        self._pace = Pace()
        self._chunks: list[Chunk] = []

    @property
    def most_chunks(self) -> int:
        return 1 if self._batch else len(self._request.samples)

    def next_chunk(self, costs: Costs, workers: int) -> Chunk | None:
        """The next samples: about `costs.CHUNK_S` of work, fewer towards the end, so that all workers end together."""
        samples = self._request.samples
        left = len(samples) - self._next
        if left == 0:
            return None
        if self._batch:
            size = left
        else:
            most = costs.chunk_samples(self.specs)
            fair = max(math.ceil(left / (2 * workers)), most // 5)
            size = min(left, fair, most, max(MAX_CHUNK_SCORES // len(self.specs), 1))
        chosen = samples[self._next : self._next + size]
        self._next += size
        chunk = Chunk(
            rewards=self.specs,
            samples=[self._plain(sample) for sample in chosen],
            step=self._request.step,
            timeout_s=self._request.timeout_s,
            batch=self._batch,
            pace=self._pace,
        )
        self._chunks.append(chunk)
        return chunk

    def _plain(self, sample: ScoreSample) -> dict[str, Any]:
        """The sample with only what the rewards read."""
        columns = sample.columns
        if not self._all_columns and columns.keys() != self._columns:
            columns = {name: columns[name] for name in self._columns if name in columns}
        if sample.messages is not None and (self._all_columns or MESSAGES in self._columns):
            columns = columns | {MESSAGES: [message.model_dump() for message in sample.messages]}
        plain: dict[str, Any] = {"completion": sample.completion, "columns": columns}
        for field in self._fields:
            value = getattr(sample, field)
            if field in ("prompt", MESSAGES) and isinstance(value, list):
                value = [message.model_dump() for message in value]
            plain[field] = value
        return plain

    def table(self, unscored: RewardScore) -> dict[str, list[RewardScore]]:
        """Reward → one score per sample of the request."""
        width = len(self.specs)
        scores = [score or unscored for chunk in self._chunks for score in chunk.scores]
        scores += [unscored] * (len(self._request.samples) * width - len(scores))
        return {spec.name: scores[position::width] for position, spec in enumerate(self.specs)}


def _check_params(spec: RewardSpec, loaded: LoadedReward) -> None:
    """Names only; the worker, which has the annotations, checks the values."""
    known = loaded.description.params_schema.get("properties", {})
    for param in loaded.description.unknown_params(spec.params):
        raise Refusal(422, "unknown_param", f"{spec.name} has no param {shown(param)}", hint=nearest(param, known))
    for param in loaded.description.missing_params(spec.params):
        raise Refusal(422, "missing_param", f"{spec.name} needs the param {param}")


def _check_sample(loaded: LoadedReward, position: int, sample: ScoreSample) -> None:
    name = loaded.description.name
    where = f"samples[{position}]" + (f" ({shown(sample.id)})" if sample.id else "")
    for column in loaded.description.columns:
        if not sample.has_column(column):
            raise Refusal(
                422,
                "missing_column",
                f"{name} needs the column {column}, which {where} does not have",
                hint=nearest(column, sample.columns) if sample.columns else "send columns",
            )
    for field in loaded.required_fields:
        if getattr(sample, field) is None:
            raise Refusal(422, "missing_field", f"{name} needs {field}, which {where} does not have")
