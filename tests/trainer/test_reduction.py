"""Metrics over micro-batches and ranks."""

import json
from pathlib import Path

import pytest
import torch
from tests.trainer.gloo_ranks import outputs_of_two_ranks

from grpo_trainer.algorithm.reduction import Tally


def record(tally: Tally, values: list[float]) -> None:
    vector = torch.tensor(values)
    tally.total("loss", vector.sum())
    tally.mean("mean", vector)
    tally.minimum("min", vector)
    tally.maximum("max", vector)


def test_a_mean_over_pieces_of_different_size_is_the_mean_of_all():
    pieces, whole = Tally(), Tally()
    for values in ([1.0], [2.0, 6.0, 3.0], []):
        part = Tally()
        record(part, values)
        pieces.merge(part)
    record(whole, [1.0, 2.0, 6.0, 3.0])
    assert pieces.reduce() == whole.reduce() == {"loss": 12.0, "mean": 3.0, "min": 1.0, "max": 6.0}


def test_means_and_extremes_of_nothing_are_left_out():
    tally = Tally()
    record(tally, [])
    assert tally.reduce() == {"loss": 0.0}


PROGRAM = """
import json
import torch
from grpo_trainer.algorithm.reduction import Tally
found = []
for ours in ([(), ("a", "b")], [("a", "b"), ("b", "a")], [("a",), ("a",)]):
    tally = Tally()
    tally.total("loss", torch.tensor(1.0))
    for name in ours[dist.get_rank()]:
        value = torch.tensor([2.0 if name == "a" else 3.0 + dist.get_rank()])
        tally.mean(name, value)
        tally.total(f"{name}_sum", value.sum())
        tally.minimum(f"{name}_min", value)
        tally.maximum(f"{name}_max", value)
    found.append(tally.reduce())
print(json.dumps(found))
"""


@pytest.mark.deepspeed
def test_a_metric_that_some_ranks_record_alone_or_in_another_order_is_theirs(tmp_path: Path):
    """A loss of one's own that records what its tokens have: on one rank they may have none of it."""
    a = {"a": 2.0, "a_min": 2.0, "a_max": 2.0}
    for output in outputs_of_two_ranks(PROGRAM, tmp_path):
        alone, both, equal = json.loads(output.splitlines()[-1])
        assert alone == a | {"loss": 2.0, "a_sum": 2.0, "b": 4.0, "b_sum": 4.0, "b_min": 4.0, "b_max": 4.0}
        assert both == a | {"loss": 2.0, "a_sum": 4.0, "b": 3.5, "b_sum": 7.0, "b_min": 3.0, "b_max": 4.0}
        assert equal == a | {"loss": 2.0, "a_sum": 4.0}
