"""The random state of a checkpoint, on a machine with other GPUs than the one before."""

import pytest
import torch

from grpo_trainer.random_state import random_state, restore_random_state


@pytest.mark.parametrize("visible", [1, 2])
def test_a_run_goes_on_where_fewer_gpus_are_visible(visible: int, monkeypatch: pytest.MonkeyPatch):
    restored: list[list[str]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: ["first", "second"])
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", restored.append)
    state = random_state()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    restore_random_state(state)
    assert restored == [["first", "second"][:visible]]
