"""Which item of a chunk a lost worker is held against."""

import pytest

from grpo_proto import RewardScore, RewardSpec
from grpo_reward.executors.base import Chunk
from grpo_reward.executors.blame import MAX_DEATHS_BEFORE, MAX_SLOW_BEGINNINGS, Blame
from grpo_reward.executors.worker_handle import Ending

WORKERS = 2


def chunk_of(num_samples: int, *, batch: bool = False) -> Chunk:
    samples = [{"completion": str(index), "columns": {}} for index in range(num_samples)]
    return Chunk([RewardSpec(name="min_length")], samples, None, 3.0, batch)


def outcomes(chunk: Chunk) -> list[str | None]:
    return [score and score.status for score in chunk.scores]


def lose(blame: Blame, *endings: Ending) -> None:
    for ending in endings:
        blame.lost(ending, blame.next_items(), with_fork_server=False)


def test_only_the_item_that_was_in_work_is_late() -> None:
    chunk = chunk_of(3)
    blame = Blame(chunk, workers=WORKERS)
    lose(blame, Ending("timeout", 1))
    assert outcomes(chunk) == [None, "timeout", None]
    assert chunk.scores[1] == RewardScore(score=None, status="timeout", detail="no score within 3 s")
    assert blame.next_items() == [0, 2]


def test_an_item_whose_worker_died_is_tried_once_more() -> None:
    chunk = chunk_of(3)
    blame = Blame(chunk, workers=WORKERS)
    lose(blame, Ending("death", 1, "it exited with status 1"), Ending("death", 2, "it exited with status 2"))
    assert outcomes(chunk) == [None, None, None]
    lose(blame, Ending("death", 1, "it exited with status 3"))
    assert outcomes(chunk) == [None, "error", None]
    assert chunk.scores[1] is not None
    assert chunk.scores[1].detail == "the worker process died of it twice: it exited with status 3"


def test_what_is_tried_once_more_comes_first_and_its_worker_keeps_nothing_back() -> None:
    chunk = chunk_of(3)
    blame = Blame(chunk, workers=WORKERS)
    assert not chunk.eager
    lose(blame, Ending("death", 1))
    assert blame.next_items() == [1, 0, 2]
    assert chunk.eager


def test_deaths_before_the_first_item_are_believed_to_be_of_something_else_only_so_often() -> None:
    chunk = chunk_of(3)
    blame = Blame(chunk, workers=WORKERS)
    for _ in range(MAX_DEATHS_BEFORE):
        lose(blame, Ending("death"))
    assert blame.next_items() == [0, 1, 2]
    lose(blame, Ending("death"))
    assert blame.next_items() == [0]
    assert outcomes(chunk) == [None, None, None]
    lose(blame, Ending("death"))
    assert blame.next_items() == [0]  # once more
    lose(blame, Ending("death"))
    assert outcomes(chunk) == ["error", None, None]
    assert blame.next_items() == [1]


def test_workers_that_do_not_come_to_the_first_item_are_late_with_all_that_is_open() -> None:
    chunk = chunk_of(3)
    chunk.scores[0] = RewardScore(score=1.0, status="ok")
    blame = Blame(chunk, workers=WORKERS)
    for _ in range(MAX_SLOW_BEGINNINGS):
        assert outcomes(chunk) == ["ok", None, None]
        lose(blame, Ending("timeout"))
    assert outcomes(chunk) == ["ok", "timeout", "timeout"]
    assert blame.next_items() == []


def test_workers_that_were_stopped_before_they_read_are_forgiven_as_often_as_there_are_workers_and_more() -> None:
    chunk = chunk_of(2)
    blame = Blame(chunk, workers=WORKERS)
    for _ in range(WORKERS + MAX_DEATHS_BEFORE):
        lose(blame, Ending("unread"))
    assert blame.next_items() == [0, 1]
    lose(blame, Ending("unread"))
    assert outcomes(chunk) == ["error", "error"]


@pytest.mark.parametrize("ending", [Ending("timeout", 0), Ending("death", 0)])
def test_a_batch_is_one_item(ending: Ending) -> None:
    chunk = chunk_of(3, batch=True)
    blame = Blame(chunk, workers=WORKERS)
    lose(blame, ending)
    if ending.kind == "death":
        assert blame.next_items() == [0]
        lose(blame, ending)
    assert outcomes(chunk) == [{"timeout": "timeout", "death": "error"}[ending.kind]] * 3
    assert blame.next_items() == []
