"""LoRA on real DeepSpeed, of one and of two ranks: see lora_worker.py."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from tests.tiny_model import make_model, make_tokenizer
from tests.trainer.spawned_ranks import MARKS, run_ranks
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from grpo_trainer.config.model import ModelConfig
from grpo_trainer.quantize_base import quantize_base

WORLD_SIZES = {0: 1, 2: 2, 3: 2}
"""The number of ranks that ran each ZeRO stage. In bfloat16 stage 0 is already DeepSpeed's stage 1."""
STAGES = list(WORLD_SIZES)

pytestmark = MARKS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    for tied in (True, False):
        target = folder / ("tied" if tied else "untied")
        make_model(tied=tied, hidden_size=64).save_pretrained(target)
        make_tokenizer().save_pretrained(target)
    for dtype in ("float32", "bfloat16"):
        quantize_base(ModelConfig(name_or_path=str(folder / "tied"), dtype=dtype), folder / f"nf4-{dtype}")
    return folder


@pytest.fixture(scope="module")
def seen(folder: Path) -> dict[str, dict[str, Any]]:
    """What rank 0 saw, scenario by scenario."""
    found: dict[str, dict[str, Any]] = {}
    for world_size in (1, 2):
        found |= run_ranks("lora_worker.py", folder, world_size)[0]
    return found


def logprobs_of(model: PreTrainedModel, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> list[float]:
    """Compute what the engine computes, with plain transformers."""
    input_ids_BL, hidden_N, target_N = batch
    with torch.no_grad():
        all_logprobs = (model.eval()(input_ids_BL).logits.float() / 0.9).log_softmax(-1)
    return all_logprobs.flatten(0, 1)[hidden_N].gather(1, target_N[:, None])[:, 0].tolist()


@pytest.mark.parametrize("stage", STAGES)
def test_only_the_adapter_is_trained(seen: dict[str, dict[str, Any]], stage: int):
    result = seen[f"learned {stage} float32"]
    assert len(result["trained"]) == 2 * 2 * 7, "A and B of seven linear layers in two layers"
    assert all(".lora_" in name for name in result["trained"])
    assert [f"model.{name}" for name in result["moved"]] == result["trained"]
    assert result["own"] != pytest.approx(result["start"], abs=0.01)


@pytest.mark.parametrize("stage", STAGES)
def test_the_reference_is_the_model_with_the_adapter_switched_off(seen: dict[str, dict[str, Any]], stage: int):
    result = seen[f"learned {stage} float32"]
    assert result["reference"] == pytest.approx(result["start"], abs=1e-6)
    assert result["kl"][0] == 0.0
    assert result["kl"][-1] > 0.001


@pytest.mark.parametrize("stage", STAGES)
def test_all_zero_stages_train_alike(seen: dict[str, dict[str, Any]], stage: int):
    result, expected = seen[f"learned {stage} float32"], seen["learned 0 float32"]
    # Rank 0 of two has other sequences, but the same first one.
    assert result["own"][:5] == pytest.approx(expected["own"][:5], abs=1e-3)
    assert result["grad_norms"] == pytest.approx(expected["grad_norms"], rel=1e-3)


@pytest.mark.parametrize("stage", STAGES)
def test_parameters_outside_linear_layers_are_trained_alike(seen: dict[str, dict[str, Any]], stage: int):
    result, expected = seen[f"parameters {stage}"], seen["parameters 0"]
    assert result["grad_norms"] == pytest.approx(expected["grad_norms"], rel=1e-3)
    assert len(result["trained"]) == 2 * 2 * 2


@pytest.mark.parametrize("stage", STAGES)
def test_adapter_and_merged_model_load_everywhere_as_the_policy(
    seen: dict[str, dict[str, Any]], folder: Path, stage: int
):
    result, name = seen[f"learned {stage} float32"], f"{WORLD_SIZES[stage]}-{stage}-float32-True"
    assert result["push_is_adapter"]
    assert result["merged_push_is_file"]
    batch = torch.load(folder / f"batch-{name}-0.pt")
    adapter, merged = folder / f"adapter-{name}", folder / f"merged-{name}"
    base = AutoModelForCausalLM.from_pretrained(folder / "tied")
    assert set(result["names"]) == {parameter for parameter, _ in base.named_parameters()}
    loaded = {
        "PEFT": peft.PeftModel.from_pretrained(base, adapter),
        "transformers, with PEFT": AutoModelForCausalLM.from_pretrained(adapter),
        "transformers": AutoModelForCausalLM.from_pretrained(merged),
    }
    for library, model in loaded.items():
        assert logprobs_of(model, batch) == pytest.approx(result["own"], abs=1e-5), library
    assert result["config"] == json.loads((adapter / "adapter_config.json").read_text())
    assert result["config"]["base_model_name_or_path"] == str(folder / "tied")
    for place in (adapter, merged):
        assert AutoTokenizer.from_pretrained(place).eos_token == "<eos>"
        assert f"base_model: {json.dumps(str(folder / 'tied'))}" in (place / "README.md").read_text()


def test_in_bf16_the_merged_model_differs_by_its_rounding_only(seen: dict[str, dict[str, Any]], folder: Path):
    result, name = seen["learned 0 bfloat16"], "1-0-bfloat16-True"
    merged = AutoModelForCausalLM.from_pretrained(folder / f"merged-{name}")
    assert merged.dtype == torch.bfloat16
    own = torch.tensor(result["own"])
    served = torch.tensor(logprobs_of(merged, torch.load(folder / f"batch-{name}-0.pt")))
    assert (own - served).abs().mean() < 0.02
    assert (own - served).abs().mean() < (own - torch.tensor(result["start"])).abs().mean() / 5


def test_gradient_checkpointing_changes_nothing(seen: dict[str, dict[str, Any]]):
    for key in ("own", "grad_norms", "kl"):
        assert seen["checkpointing"][key] == pytest.approx(seen["no checkpointing"][key], abs=1e-5)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loaded_adapter_goes_on_to_the_bit(seen: dict[str, dict[str, Any]], stage: int, dtype: str):
    result = seen[f"continued {stage} {dtype}"]
    assert result["same_metrics"]
    assert result["same_end"]
    assert result["same_after_going_back"], "an engine that has trained does not load as a new one does"


@pytest.mark.parametrize("stage", STAGES)
def test_a_checkpoint_holds_nothing_of_the_frozen_model(seen: dict[str, dict[str, Any]], folder: Path, stage: int):
    checkpoint = folder / f"lora-checkpoint-{WORLD_SIZES[stage]}-{stage}-float32"
    states = [torch.load(file, weights_only=False) for file in checkpoint.rglob("*model_states.pt")]
    assert states
    for state in states:
        assert state["module"]
        assert all(".lora_" in name for name in state["module"])
        assert not state["frozen_param_fragments"]


def test_a_checkpoint_of_another_model_or_adapter_is_refused(seen: dict[str, dict[str, Any]]):
    other_model, other_adapter = seen["continued 2 float32"]["messages"]
    assert f"written with base_digest {'ab' * 32}, and this run has {'cd' * 32}" in other_model
    assert "written with lora {'r': 4" in other_adapter


@pytest.mark.parametrize("run", ["0 float32", "0 bfloat16", "2 bfloat16"])
def test_in_four_bits_everything_is_to_the_bit_as_on_the_same_weights_whole(
    seen: dict[str, dict[str, Any]], folder: Path, run: str
):
    result = seen[f"nf4 {run}"]
    whole, kept = result.pop("bytes")
    assert all(result.values()), result
    # Four bits and a scale for 64 weights, instead of 16 or 32 bits; embedding and norms are as large as before.
    assert kept / whole < (0.35 if "float32" in run else 0.45)
    merged = folder / f"merged-nf4-{run.replace(' ', '-')}"
    assert AutoModelForCausalLM.from_pretrained(merged).dtype == getattr(torch, run.split()[1])
    assert "have the values of NF4; the sum is not quantized" in (merged / "README.md").read_text()
    for state in (folder / f"nf4-checkpoint-{run.replace(' ', '-')}").rglob("*model_states.pt"):
        assert all(".lora_" in name for name in torch.load(state, weights_only=False)["module"])


def test_dropout_acts_in_updates_alone(seen: dict[str, dict[str, Any]]):
    first, second = seen["drops_out"]["compared"]
    assert first == second
    surveyed, in_update = seen["drops_out"]["kl"]  # of the same weights
    assert in_update != pytest.approx(surveyed, rel=0.01)
    assert seen["drops_out"]["old"], "old logprobs come from a pass without dropout"


def test_a_run_starts_from_an_adapter(seen: dict[str, dict[str, Any]]):
    assert seen["started"]["own"] == pytest.approx(seen["learned 2 float32"]["own"], abs=1e-6)
    rank, alpha, targets = seen["started"]["messages"]
    assert "in 28 tensors" in rank
    assert "is [4, 128] there and [8, 128] here" in rank
    assert "lora_alpha 8, and model.lora 4" in alpha
    assert "in 24 tensors" in targets
    assert "here (describe" in targets
