import torch

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
