"""The random state of a checkpoint, on a machine with other GPUs than the one before."""

import pytest
import torch

from grpo_trainer.engine.random_state import random_state, restore_random_state


def test_a_rank_goes_on_with_its_own_state_on_whichever_gpu_it_has(monkeypatch: pytest.MonkeyPatch):
    restored: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: "of GPU 5")
    monkeypatch.setattr(torch.cuda, "set_rng_state", restored.append)
    restore_random_state(random_state())
    assert restored == ["of GPU 5"]


def test_a_checkpoint_of_a_machine_without_a_gpu_goes_on_with_one(monkeypatch: pytest.MonkeyPatch):
    state = random_state()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda _: pytest.fail("there is none to restore"))
    restore_random_state(state)
