"""A run goes on with another number of ranks as it would have: see reshape_worker.py."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_model import make_model, make_tokenizer
from tests.trainer.spawned_ranks import MARKS, run_ranks
from transformers import Qwen2ForCausalLM

from grpo_trainer.engine.deepspeed_files import load_file
from grpo_trainer.engine.random_state import seed_anew
from grpo_trainer.engine.reshaping import read_pieces
from grpo_trainer.engine.state import STATE_TAG

FLOAT32 = [f"{stage} float32" for stage in (0, 1, 2, 3, -2, -3)]
SHARDED = [*FLOAT32[1:], "0 bfloat16", "3 bfloat16"]

pytestmark = MARKS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of one rank and of two, each gone on from by the other number."""
    folder = tmp_path_factory.mktemp("reshaping")
    model = make_model(tied=True, hidden_size=64)
    odd = copy.deepcopy(model.config)
    odd.hidden_size, odd.intermediate_size, odd.head_dim = 33, 65, 32
    for name, saved in (("tied", model), ("odd", Qwen2ForCausalLM(odd))):
        saved.save_pretrained(folder / name)
        make_tokenizer().save_pretrained(folder / name)
    for world_size in (1, 2, 1):
        run_ranks("reshape_worker.py", folder, world_size)
    return folder


def seen_by(folder: Path, world_size: int, case: str) -> list[dict[str, Any]]:
    files = [folder / f"seen-{world_size}-{rank}.json" for rank in range(world_size)]
    return [json.loads(file.read_text())[case] for file in files]


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("case", FLOAT32)
def test_the_next_updates_are_those_of_the_undisturbed_run(folder: Path, case: str, world_size: int):
    for seen in seen_by(folder, world_size, case):
        assert len(seen["results"]) == 2
        for result, expected in zip(seen["results"], seen["expected"], strict=True):
            assert result == pytest.approx(expected, rel=1e-6, abs=1e-6)
        assert seen["difference"] < 1e-6


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("case", [*FLOAT32[:4], "0 bfloat16", "3 bfloat16"])
def test_a_changed_setting_of_the_optimizer_acts_from_the_resume_on(folder: Path, case: str, world_size: int):
    """Loaded from as many ranks and from another number, whose states bring the settings that they were saved with."""
    for of_rank in seen_by(folder, world_size, f"{case} with other settings"):
        for seen in of_rank:
            assert seen["difference"] < (1e-5 if "float32" in case else 1e-3)
            assert seen["clip"] == (None if case == "0 float32" else 1e-3)


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("case", SHARDED)
def test_no_bit_of_the_optimizer_is_lost(folder: Path, case: str, world_size: int):
    """Also in bfloat16, whose gradients depend on the number of ranks."""
    place = folder / f"saved-{3 - world_size}-{case.replace(' ', '-')}"
    before, after = parameters(place, 3 - world_size), parameters(place / "again", world_size)
    assert before.keys() == after.keys()
    for name, of_name in before.items():
        assert of_name.keys() == after[name].keys() == {"master", "exp_avg", "exp_avg_sq"}
        for key, numbers in of_name.items():
            assert numbers.count_nonzero() > 0
            again = after[name][key]
            length = min(len(numbers), len(again))  # ZeRO-3 pads a part with whatever is there
            assert max(len(numbers), len(again)) <= length + 1
            assert torch.equal(numbers[:length], again[:length])


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_program_in_a_file_is_refused_by_its_name_and_not_run(folder: Path, world_size: int):
    """On as many ranks as have saved it, which DeepSpeed loads, and on another number."""
    for of_rank in seen_by(folder, world_size, "refused"):
        for said in of_rank:
            assert re.search(r"optim_states\.pt holds posix\.mkdir, which no checkpoint of", said), said


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("case", [*FLOAT32, "0 bfloat16", "3 bfloat16"])
def test_the_size_of_a_checkpoint_is_known_before_it_is_written(folder: Path, case: str, world_size: int):
    place = folder / f"saved-{3 - world_size}-{case.replace(' ', '-')}" / "again"
    written = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    for seen in seen_by(folder, world_size, case):
        assert 0 <= written - seen["num_checkpoint_bytes"] < 2**18, "of small files and of what names the tensors"


def parameters(place: Path, num_ranks: int) -> dict[str, dict[str, torch.Tensor]]:
    tag = place / STATE_TAG
    (model, *_) = sorted(tag.glob("*mp_rank_00_model_states.pt"))
    files = [sorted(tag.glob(f"*zero_pp_rank_{rank}_*optim_states.pt")) for rank in range(num_ranks)]
    states = [load_file(file)["optimizer_state_dict"] for (file,) in files]
    pieces = read_pieces(states, load_file(model))
    return {name: {key: torch.cat(found) for key, found in of_name.items()} for name, of_name in pieces.items()}


def test_a_rank_that_nobody_saved_draws_its_own_random_numbers(folder: Path):
    first, second = (seen["drawn"] for seen in seen_by(folder, 2, "2 float32"))
    assert first != second
    with torch.random.fork_rng():
        seed_anew(1, updates_done=2, rank=1)
        assert second == torch.rand(2).tolist()
