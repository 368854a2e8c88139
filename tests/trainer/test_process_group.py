"""A rank trains on its own GPU, and never on the CPU by accident."""

import logging

import pytest
import torch

from grpo_trainer.config.optimization import DeepSpeedConfig
from grpo_trainer.errors import UnavailableError, UsageError
from grpo_trainer.ranks.process_group import own_device, tell_of_ranks


@pytest.fixture
def torch_for_cuda(monkeypatch: pytest.MonkeyPatch):
    """Has torch say that it is built for CUDA and sees so many GPUs."""

    def sees(gpus: int, *, rank: int = 0, ranks: int = 1) -> None:
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        if ranks > 1:
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", str(ranks))

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


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (
            {},
            [
                "1 rank trains, on cuda; ZeRO stage 2",
                "4 GPUs are visible, and 1 ranks train here: the others stay idle",
            ],
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2"},
            [
                "8 ranks train, 2 of them on this machine, on cuda; ZeRO stage 2",
                "deepspeed.nproc_per_node is 4, and the launcher has started 2 ranks here: that holds",
                "4 GPUs are visible, and 2 ranks train here: the others stay idle",
            ],
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_SIZE": "4"},
            ["8 ranks train, 4 of them on this machine, on cuda; ZeRO stage 2"],
        ),
        ({"RANK": "0", "WORLD_SIZE": "8"}, ["8 ranks train, on cuda; ZeRO stage 2"]),
    ],
)
def test_the_ranks_are_told_and_what_they_leave_idle(
    environment: dict[str, str],
    said: list[str],
    torch_for_cuda,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    torch_for_cuda(4)
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = DeepSpeedConfig(zero_stage=2, nproc_per_node=4 if environment else 1)
    with caplog.at_level(logging.INFO):
        tell_of_ranks(config, torch.device("cuda", 0))
    assert [record.getMessage() for record in caplog.records] == said
