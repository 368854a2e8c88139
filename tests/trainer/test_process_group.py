"""A rank trains on its own GPU, and never on the CPU by accident."""

import logging

import pytest
import torch

from grpo_trainer.errors import UnavailableError, UsageError
from grpo_trainer.ranks.process_group import own_device, tell_of_idle_gpus


@pytest.fixture
def torch_for_cuda(monkeypatch: pytest.MonkeyPatch):
    """Has torch say that it is built for CUDA and sees so many GPUs."""

    def sees(gpus: int, *, rank: int = 0, ranks: int = 1) -> None:
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return sees


def test_a_torch_for_cpus_trains_on_the_cpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert own_device() == torch.device("cpu")


def test_a_torch_for_gpus_that_sees_none_does_not(torch_for_cuda, monkeypatch: pytest.MonkeyPatch):
    torch_for_cuda(0)
    with pytest.raises(UnavailableError, match="finds no GPU"):
        own_device()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert own_device() == torch.device("cpu")


def test_every_rank_has_its_own(torch_for_cuda):
    torch_for_cuda(4, rank=3, ranks=4)
    assert own_device() == torch.device("cuda", 3)


def test_more_ranks_than_gpus(torch_for_cuda):
    torch_for_cuda(2, rank=1, ranks=3)
    with pytest.raises(UsageError, match="3 ranks need a GPU each, but 2 are visible here"):
        own_device()


def test_gpus_that_stay_idle_are_told_once(torch_for_cuda, caplog: pytest.LogCaptureFixture):
    for rank in (0, 1):
        torch_for_cuda(4, rank=rank, ranks=2)
        with caplog.at_level(logging.WARNING):
            tell_of_idle_gpus()
    assert [record.getMessage() for record in caplog.records] == [
        "4 GPUs are visible, but deepspeed.nproc_per_node uses 2: the others stay idle"
    ]
