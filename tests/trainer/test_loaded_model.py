"""The policy's model as it is loaded: what is refused or warned of, and what recomputing its activations keeps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_model import make_model
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    MixtralConfig,
    OPTConfig,
    Phi3Config,
    PhimoeConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3MoeConfig,
    SeedOssConfig,
    Starcoder2Config,
)

from grpo_trainer.config.lora import LoraConfig
from grpo_trainer.config.run_config import ModelConfig
from grpo_trainer.engine.model import check_family, load_policy, recompute_activations
from grpo_trainer.engine.rope import one_rope_context
from grpo_trainer.errors import UsageError
from grpo_trainer.lora.adapter import Adapter


def test_a_model_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match="nowhere cannot be loaded"):
        load_policy(ModelConfig(name_or_path=str(tmp_path / "nowhere")), temperature=1.0, zero3=None)


def test_quantized_weights_are_refused_before_they_are_loaded(tmp_path: Path):
    config = make_model(tied=True, hidden_size=64).config
    config.quantization_config = {"quant_method": "mxfp4"}
    config.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"quantized \(mxfp4\)"):
        load_policy(ModelConfig(name_or_path=str(tmp_path)), temperature=1.0, zero3=None)


def test_a_family_that_was_never_pushed_is_warned_of(caplog: pytest.LogCaptureFixture):
    check_family(Qwen3MoeConfig(), "tried")
    assert not caplog.records
    check_family(CohereConfig(), "untried")
    assert "no push has been tried with the family cohere" in caplog.text


TINY: dict[str, Any] = {"vocab_size": 101, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


NOISY: dict[str, Callable[[], PreTrainedConfig]] = {
    "qwen2": lambda: Qwen2Config(**TINY, intermediate_size=64, num_key_value_heads=1, attention_dropout=0.5),
    "starcoder2": lambda: Starcoder2Config(
        **TINY, intermediate_size=64, num_key_value_heads=1, residual_dropout=0.5, embedding_dropout=0.5
    ),
    "opt": lambda: OPTConfig(**TINY, ffn_dim=64, word_embed_proj_dim=64, dropout=0.5, attention_dropout=0.5),
    "seed_oss": lambda: SeedOssConfig(
        **TINY, intermediate_size=64, num_key_value_heads=1, head_dim=32, residual_dropout=0.5, attention_dropout=0.5
    ),
    "mixtral": lambda: MixtralConfig(
        **TINY, intermediate_size=64, num_key_value_heads=1, num_local_experts=4, router_jitter_noise=0.5
    ),
    "phimoe": lambda: PhimoeConfig(
        **TINY, intermediate_size=64, num_key_value_heads=1, num_local_experts=4, router_jitter_noise=0.5,
        input_jitter_noise=0.5, hidden_dropout=0.5,
    ),
}  # fmt: skip
"""Families that draw in training mode, each with settings that would show."""


@pytest.mark.parametrize(
    ("config", "context"),
    [
        (lambda: Qwen2Config(**TINY), None),
        (
            lambda: Phi3Config(
                **TINY, pad_token_id=0, max_position_embeddings=512, original_max_position_embeddings=64,
                rope_parameters={
                    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 16, "long_factor": [2.0] * 16,
                    "original_max_position_embeddings": 64,
                },
            ),
            64,
        ),
        (
            lambda: Qwen2Config(
                **TINY, num_key_value_heads=1, max_position_embeddings=128,
                rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
            ),
            128,
        ),
        (
            lambda: Qwen2Config(
                **TINY, rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0,
                                         "original_max_position_embeddings": 64},
            ),
            None,
        ),
    ],
    ids=["plain", "longrope", "dynamic", "yarn"],
)  # fmt: skip
def test_the_context_up_to_which_a_rotary_embedding_does_not_depend_on_the_length(
    config: Callable[[], PreTrainedConfig], context: int | None
):
    """Compare what depends on it: the logits of a sequence beside a longer one."""
    torch.manual_seed(0)
    family = config()
    assert one_rope_context(family) == context
    if context is None:
        return
    model = AutoModelForCausalLM.from_config(family).eval()

    def logits(length: int) -> torch.Tensor:
        positions = torch.arange(length)[None]
        return model(torch.arange(length)[None] % 90 + 5, position_ids=positions).logits[0, :20].detach()

    short = logits(20)
    assert torch.allclose(logits(context), short, atol=1e-5)
    assert not torch.allclose(logits(context + 1), short, atol=1e-5)


@pytest.mark.parametrize("name", NOISY)
def test_nothing_is_drawn_while_activations_are_recomputed(name: str):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(NOISY[name]()).eval()
    input_ids = torch.arange(5, 25)[None]
    expected = model(input_ids).logits.detach()
    recompute_activations(model)
    found = model(input_ids).logits
    assert torch.equal(found, expected)
    assert torch.equal(model(input_ids).logits, expected)
    found.sum().backward()


def kept_bytes(model: PreTrainedModel) -> tuple[int, list[torch.Tensor]]:
    """Count what is kept of one forward pass, parameters not counted, and the gradients.

    That is what autograd saves, and the inputs of the layers, which the recomputation holds by itself.
    """
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage
        return tensor

    def keep_input(_: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        keep(arguments[0])

    model.zero_grad()
    decoder = model.get_decoder()
    hooks = [layer.register_forward_pre_hook(keep_input) for layer in decoder.layers]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = decoder(input_ids=(torch.arange(100) % 20 + 5)[None]).last_hidden_state
    for hook in hooks:
        hook.remove()
    hidden.square().sum().backward()
    return sum(storage.nbytes() for storage in kept.values()), [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]


@pytest.mark.parametrize("adapted", [False, True], ids=["all weights", "an adapter"])
def test_gradient_checkpointing_keeps_a_third_at_most(adapted: bool):
    model = make_model(tied=True, hidden_size=64, num_layers=4).eval()
    if adapted:
        Adapter(model, LoraConfig(r=4, alpha=8), base_name="tiny", seed=1)
    plain, gradients = kept_bytes(model)
    recompute_activations(model)
    recomputed, others = kept_bytes(model)
    assert recomputed <= plain / 3
    assert all(torch.equal(one, other) for one, other in zip(gradients, others, strict=True))
