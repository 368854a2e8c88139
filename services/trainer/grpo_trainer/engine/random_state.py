"""Seed the random generators of this process, and save and restore them with a checkpoint."""

import random
from typing import Any

import torch


def seed_everything(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)


def seed_anew(seed: int, *, updates_done: int, rank: int) -> None:
    """Seed a rank in the middle of a run of which no rank of its number has saved a state."""
    seed_everything(random.Random(f"{seed} {updates_done} {rank}").getrandbits(63))


def random_state() -> dict[str, Any]:
    """Return the state of Python, torch and this rank's GPU: plain numbers and tensors, loadable without pickle."""
    cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_available() else []
    return {"python": random.getstate(), "torch": torch.get_rng_state(), "cuda": cuda}


def restore_random_state(state: dict[str, Any]) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and state["cuda"]:
        torch.cuda.set_rng_state(state["cuda"][0])  # the same rank may have another GPU now
