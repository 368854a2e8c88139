"""The seam between the service and the machinery that runs rewards."""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from pydantic import BaseModel

from grpo_proto import RewardDescription, RewardScore, RewardSpec

T = TypeVar("T")


class LoadedReward(BaseModel):
    """A reward as the listening server knows it: everything but its code."""

    description: RewardDescription
    fields: list[str]
    """Fields of a sample it reads, beside the completion."""
    required_fields: list[str]
    columns: list[str]
    """Columns it reads, those it can do without included."""
    text_columns: list[str] = []
    """Those of them that are text: a number there would be an error for every try."""
    all_columns: bool
    takes_step: bool
    of_plugin: bool = False
    """It is scored where plugins are, and shares no chunk with any other reward; see `separate.py`."""

    @property
    def batch(self) -> bool:
        return self.description.batch


class InvalidParams(Exception):  # noqa: N818 - it is an answer to a request, like its 422
    """The params of one reward do not fit it: the request is wrong as a whole."""

    def __init__(self, reward: str, message: str):
        self.reward, self.message = reward, message
        super().__init__(f"{reward}: {message}")


class ExecutorUnavailable(Exception):  # noqa: N818
    """Nothing can be scored now."""


class ForkServerDied(ExecutorUnavailable):
    """The process that makes the workers has gone while it loaded the rewards: another may do better."""


@dataclass
class Pace:
    """What the chunks of a request that share their rewards have in common."""

    num_late: int = 0
    """How many of them were not quick; see `turns.py`."""
    reward_keys: list[bytes] | None = None
    """Digest of each reward with its params; see `memo.py`."""


@dataclass
class Chunk:
    """A piece of a request: S samples × R rewards, in items, sample by sample. The executor fills `scores` in place.

    With `batch` there is one reward, and all samples are one item. What is still None when the deadline cuts the
    executor off has no score; what is there counts.
    """

    rewards: list[RewardSpec]
    samples: list[dict[str, Any]]
    """Completion, columns and fields, only those that `rewards` read."""
    step: int | None
    timeout_s: float
    """Limit for one item."""
    batch: bool = False
    together: bool = False
    """Whether its samples are of several requests. It then ends with the first item that is late or dies, and what is
    open is scored alone: the others would wait behind that item, each for the next such one."""
    pace: Pace = field(default_factory=Pace)
    turn_s: float | None = None
    """A worker that had it for so long begins no further item: `score` comes back, and the rest waits for a turn."""
    limit_s: float | None = None
    """Time for which workers may still have it, the wait for one left aside; None for as long as it takes. After that
    it is `taken_away`, and what is open waits for a turn."""
    since_s: float | None = None
    """When it began to wait for a worker, on the event loop's clock."""
    taken_away: bool = field(default=False, init=False)
    ended: bool = field(default=False, init=False)
    eager: bool = field(default=False, init=False)
    """A worker was lost with it: the next sends each result at once, so that another loss takes none with it."""
    scores: list[RewardScore | None] = field(default_factory=list)
    """Length S·R, also with `batch`."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Reward → time spent in it."""

    def __post_init__(self) -> None:
        self.scores = [None] * (len(self.samples) * len(self.rewards))

    @property
    def num_items(self) -> int:
        return 1 if self.batch else len(self.scores)

    async def at_work(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Let a worker `work` on it, and return what comes of that; None when it was taken away, after `limit_s`."""
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(self.limit_s) as limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            self.taken_away = True
            return None
        finally:
            if self.limit_s is not None:
                self.limit_s -= time.monotonic() - began_s

    def extend(self, samples: Sequence[dict[str, Any]]) -> None:
        self.samples += samples
        self.scores += [None] * (len(samples) * len(self.rewards))

    def open_items(self) -> list[int]:
        if self.ended:
            return []
        if self.batch:
            return [0] if None in self.scores else []
        return [item for item, score in enumerate(self.scores) if score is None]

    def open_rows(self) -> list[int]:
        """The samples that have an open item; all of a batch."""
        if self.batch:
            return list(range(len(self.samples)))
        return sorted({item // len(self.rewards) for item in self.open_items()})

    def fill(self, rows: Sequence[int], scores: Sequence[RewardScore | None]) -> None:
        """What came of those samples, where nothing was there yet."""
        width = len(self.rewards)
        items = (row * width + position for row in rows for position in range(width))
        for item, score in zip(items, scores, strict=True):
            self.scores[item] = self.scores[item] or score

    def spend(self, seconds: Mapping[str, float]) -> None:
        """Time that was spent in rewards."""
        for name, more in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + more

    def settle(self, item: int, score: RewardScore) -> None:
        """One outcome for a whole item: it was late, or its worker died of it."""
        if self.batch:
            self.scores = [score] * len(self.scores)
        else:
            self.scores[item] = score
        self.ended = self.together

    def give_up(self, status: Literal["error", "timeout"], detail: str) -> None:
        """One outcome for all that is open."""
        for item in self.open_items():
            self.settle(item, RewardScore(score=None, status=status, detail=detail))


class Executor(Protocol):
    """Runs chunks. All methods belong to one event loop.

    `score` fills every score of a chunk, or what its `turn_s` and `limit_s` allow, and returns. Cancelled (the deadline
    has passed, or the client has gone), it frees what the chunk occupied; scores that came until then stay in the
    chunk. Raises InvalidParams, and ExecutorUnavailable when nothing can run.
    """

    @property
    def rewards(self) -> Mapping[str, LoadedReward]: ...

    @property
    def workers(self) -> int:
        """How many items can run at once, as a rule."""

    @property
    def spare(self) -> int:
        """How many more can now, for what is quick while `workers` others are slow; see `turns.py`."""

    @property
    def problem(self) -> str | None:
        """Why nothing can be scored now; None while it can."""

    @property
    def failed(self) -> str | None:
        """Why nothing can be scored ever again; the server then ends."""

    def launch(self) -> None:
        """Begin what takes long and needs no event loop; `start` does it otherwise. Afterwards `stop` has to come."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def score(self, chunk: Chunk) -> None: ...
