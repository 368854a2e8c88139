"""The checks of an adapter push without an engine, and the kernels that an engine on CPUs gets."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_proto.server.refusal import Refusal
from grpo_proto.transport import plan_manifest
from tests.tiny_model import save_tiny_model

pytestmark = pytest.mark.vllm  # vLLM takes seconds to import
LAYER = "base_model.model.model.layers.0.self_attn.q_proj"
CONFIG: dict[str, Any] = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}


def helper(**changes: Any):
    from vllm.config.lora import LoRAConfig

    from grpo_rollout.adapter_check import check_config

    return check_config(CONFIG | changes, LoRAConfig(max_lora_rank=64, max_loras=4))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "bias"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["score"]}, "modules_to_save is"),
        ({"r": 128}, "rank 128 is greater than max_lora_rank 64"),
        ({"rank_pattern": {"q_proj": 128}}, "rank 128 is greater than max_lora_rank 64"),
        ({"r": 0}, "positive"),
        ({"r": "8"}, "'str'"),
        ({"init_lora_weights": "pissa"}, "pissa"),
    ],
)
def test_a_configuration_that_cannot_be_served_is_named(changes: dict[str, Any], named: str):
    with pytest.raises(Refusal, match=named) as refused:
        helper(**changes)
    assert (refused.value.status, refused.value.detail.type) == (422, "adapter_config")


def test_a_configuration_is_needed():
    from vllm.config.lora import LoRAConfig

    from grpo_rollout.adapter_check import check_config

    for config in (None, {}, {"r": 8}):
        with pytest.raises(Refusal, match="peft_config"):
            check_config(config, LoRAConfig())


def check(
    triples: list[tuple[str, str, tuple[int, ...]]], *, known: tuple[int, int] | None = (32, 48), **changes: Any
) -> None:
    from grpo_rollout.adapter_check import check_tensors

    sizes = {name: known for name, _, _ in triples if name.startswith(LAYER)}
    check_tensors(plan_manifest(triples), helper(**changes), sizes)


A = (f"{LAYER}.lora_A.weight", "float32", (8, 32))
B = (f"{LAYER}.lora_B.weight", "float32", (48, 8))


def test_what_fits_passes():
    check([A, B])
    check([(A[0], "bfloat16", A[2]), (B[0], "bfloat16", B[2])])
    check([(A[0], "float32", (16, 32)), (B[0], "float32", (48, 16))], rank_pattern={"q_proj": 16})
    check([(A[0], "float32", (64, 9)), B], known=None)  # experts: vLLM knows their layout, this server does not


@pytest.mark.parametrize(
    ("triples", "named"),
    [
        ([A], r"q_proj has no lora_B"),
        ([B], r"q_proj has no lora_A"),
        ([(A[0], "float32", (16, 32)), B], r"has shape \[16, 32\] and must have \[8, 32\]"),
        ([A, (B[0], "float32", (24, 8))], r"has shape \[24, 8\] and must have \[48, 8\]"),
        ([(A[0], "int8", (8, 32)), B], "has dtype int8"),
        ([A, B, ("base_model.model.model.layers.7.x.lora_A.weight", "float32", (8, 32))], r"layers\.7\.x.*no layer"),
        ([A, B, ("model.layers.0.self_attn.q_proj.weight", "float32", (8, 32))], "not named as PEFT"),
        ([A, B, (f"{LAYER}.lora_magnitude_vector", "float32", (8,))], "not named as PEFT"),
    ],
)
def test_tensors_that_do_not_fit_are_named(triples: list[tuple[str, str, tuple[int, ...]]], named: str):
    with pytest.raises(Refusal, match=named) as refused:
        check(triples)
    assert (refused.value.status, refused.value.detail.type) == (422, "adapter_mismatch")


async def test_the_base_is_compared_by_digest(tmp_path: Path):
    from grpo_rollout.adapter_check import BaseDigest

    base = BaseDigest(lambda: save_tiny_model(tmp_path / "model"))
    with pytest.raises(Refusal, match=r"digest None, and [0-9a-f]{64} is served") as refused:
        await base.check(None, timeout_s=30.0)
    assert (refused.value.status, refused.value.detail.type) == (409, "other_base")
    await base.check(base.digest, timeout_s=0.1)


async def test_a_base_without_a_digest_takes_no_adapter(tmp_path: Path):
    from grpo_rollout.adapter_check import BaseDigest

    base = BaseDigest(lambda: tmp_path)
    with pytest.raises(Refusal, match=r"no model\.safetensors") as refused:
        await base.check("0" * 64, timeout_s=30.0)
    assert (refused.value.status, base.digest) == (409, None)
    await asyncio.sleep(0)


@pytest.mark.parametrize("slots", [[-1, -1, -1], [1, 1, 1], [0, -1, 1, 0, -1], [1, -1]])
def test_the_kernels_add_each_rows_own_adapter(slots: list[int]):
    from grpo_rollout import cpu_kernels

    torch.manual_seed(0)
    x, a, b = torch.randn(len(slots), 6), torch.randn(2, 1, 4, 6), torch.randn(2, 1, 5, 4)
    y = torch.randn(len(slots), 7)
    expected = y.clone()
    for row, slot in enumerate(slots):
        if slot >= 0:
            expected[row, :5] += 0.5 * b[slot, 0] @ (a[slot, 0] @ x[row])
    buffer, groups = torch.zeros(len(slots), 4), cpu_kernels.groups(torch.tensor(slots))
    cpu_kernels.shrink(buffer, x, a, 0.5, groups)
    cpu_kernels.expand(y, buffer, b, groups)
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize(("inputs", "outputs"), [(64, 8), (176, 8), (896, 32), (2048, 16), (8, 192)])
def test_the_bits_of_a_row_do_not_depend_on_the_rows_beside_it(inputs: int, outputs: int):
    from grpo_rollout import cpu_kernels

    torch.manual_seed(0)
    x, weight = torch.randn(64, inputs) / inputs**0.5, torch.randn(outputs, inputs)
    whole = cpu_kernels.product(x, weight)
    torch.testing.assert_close(whole, x @ weight.T)
    for count in (1, 2, 3, 7, 16, 33):
        assert torch.equal(cpu_kernels.product(x[:count], weight), whole[:count]), count
