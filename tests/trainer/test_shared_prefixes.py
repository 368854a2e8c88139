"""Rows in which every token stands once: loss, gradient and logprobs are those of a padded row for each sequence."""

import random
from collections.abc import Iterator
from inspect import signature
from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.rollout.families.models import FAMILIES
from tests.tiny_model import make_model
from tests.trainer.made_episodes import VERSION, decided
from tests.trainer.made_forests import SHARING, batches, both_ways, forest_of_all_kinds, learnt, of_family
from torch.nn.attention.varlen import varlen_attn
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config
from transformers import modeling_flash_attention_utils as flash_utils

from grpo_trainer.algorithm.sequences import single_turn
from grpo_trainer.config.lora import LoraConfig
from grpo_trainer.config.model import ModelConfig
from grpo_trainer.config.optimization import DeepSpeedConfig
from grpo_trainer.engine import shared_attention
from grpo_trainer.engine.policy import Policy
from grpo_trainer.engine.prefix_sharing import SHARING_FAMILIES, prefix_sharing_for
from grpo_trainer.errors import RunError
from grpo_trainer.lora.adapter import Adapter

CPU = torch.device("cpu")
SHARES = DeepSpeedConfig()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of tiny products wait for each other longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_nothing_changes(model: PreTrainedModel, *, cuts: tuple[int, ...] = ()) -> None:
    expected, found = both_ways(model, forest_of_all_kinds(), cuts)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-6, atol=2e-6)
    assert found[1] == pytest.approx(expected[1], rel=1e-6, abs=1e-7)
    assert (found[2] - expected[2]).norm() < 2e-6 * expected[2].norm()


@pytest.mark.parametrize("name", [*SHARING_FAMILIES, "qwen2_untied"])
def test_an_update_of_a_family_is_that_of_padded_rows(name: str):
    model = of_family(name)
    assert prefix_sharing_for(model.config, ModelConfig(name_or_path="any"), SHARES, device=CPU) is not None
    assert_nothing_changes(model)


@pytest.mark.parametrize("adapter", [False, True])
def test_windows_recomputed_activations_an_adapter_and_cuts_change_nothing(adapter: bool):
    config = Qwen2Config(
        vocab_size=101, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, use_sliding_window=True, sliding_window=4, max_window_layers=1, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    assert set(config.layer_types) == {"full_attention", "sliding_attention"}
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if adapter:
        lora = Adapter(model, LoraConfig(r=4, alpha=8), base_name="tiny", seed=1)
        with torch.no_grad():
            for tensor in lora.tensors().values():
                tensor.normal_(0.0, 0.05)
    assert_nothing_changes(model.train(), cuts=(5, 6))


def varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool,
    softmax_scale: float,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    **_: object,
) -> torch.Tensor:
    """What flash_attn_varlen_func computes: causal, aligned at the end of the keys."""
    assert causal
    assert cu_seqlens_q.dtype == torch.int32
    k, v = (tensor.repeat_interleave(q.shape[1] // tensor.shape[1], dim=1) for tensor in (k, v))
    found = []
    for (a, b), (c, d) in zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True):
        assert b - a <= max_seqlen_q
        assert d - c <= max_seqlen_k
        scores = torch.einsum("qhd,khd->hqk", q[a:b], k[c:d]) * softmax_scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        distance = torch.arange(b - a)[:, None] + (d - c) - (b - a) - torch.arange(d - c)
        hidden = (distance < 0) | (distance > (window_size[0] if window_size[0] >= 0 else d))
        found.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v[c:d]))
    return torch.cat(found)


@pytest.mark.parametrize("name", ["qwen2", "gemma2", "mistral", "phi3"])
def test_flash_attention_reads_the_paths(name: str, monkeypatch: pytest.MonkeyPatch):
    """Through transformers' own code, with a reference in place of the kernel, which needs a GPU."""
    process = flash_utils._lazy_define_process_function(varlen)
    kernels = (None, varlen, None, None, None)
    monkeypatch.setattr(flash_utils, "lazy_import_flash_attention", lambda *_, **__: (kernels, (process, dict)))
    model, sequences = of_family(name), forest_of_all_kinds()
    padded = Policy(model, temperature=0.9, chunk_tokens=8)
    expected = learnt(padded, batches([sequences], None))
    model.get_decoder().config._attn_implementation = "flash_attention_2"
    found = learnt(Policy(model, temperature=0.9, chunk_tokens=8), batches([sequences], SHARING))
    torch.testing.assert_close(found[0], expected[0], rtol=1e-6, atol=2e-6)
    assert (found[2] - expected[2]).norm() < 2e-6 * expected[2].norm()


@pytest.mark.parametrize("name", ["qwen2", "mistral", "phi3", "qwen3_moe", "gemma2", "gpt_oss"])
def test_torchs_flash_attention_reads_the_paths_of_what_it_can_compute(name: str, monkeypatch: pytest.MonkeyPatch):
    """With a reference in place of the kernel, which needs a GPU. It knows no soft-capping and no sinks."""
    calls = []

    def reference(*tensors_and_lengths: Any, **others: Any):
        given = signature(varlen_attn).bind(*tensors_and_lengths, **others).arguments
        assert given["enable_gqa"]
        before, behind = given["window_size"]
        assert behind == 0
        calls.append(before)
        windows = {"causal": True, "window_size": (before, behind)}
        return varlen(*tensors_and_lengths, softmax_scale=given["scale"], **windows)

    monkeypatch.setattr(shared_attention, "varlen_attn", reference)
    monkeypatch.setattr(shared_attention, "in_one_call", lambda *_, **__: True)
    model = of_family(name)
    expected, found = both_ways(model, forest_of_all_kinds())
    assert len(calls) == (0 if name in ("gemma2", "gpt_oss") else model.config.num_hidden_layers)
    assert {before >= 0 for before in calls} <= {name == "mistral"}
    torch.testing.assert_close(found[0], expected[0], rtol=1e-6, atol=2e-6)
    assert (found[2] - expected[2]).norm() < 2e-6 * expected[2].norm()


@pytest.mark.parametrize(
    ("device", "dtype", "widths", "capability", "can"),
    [
        ("cuda", torch.bfloat16, (128, 128), (9, 0), True),
        ("cuda", torch.bfloat16, (256, 256), (8, 0), True),
        ("cuda", torch.float32, (128, 128), (9, 0), False),
        ("cuda", torch.bfloat16, (192, 128), (9, 0), False),
        ("cuda", torch.bfloat16, (264, 264), (9, 0), False),
        ("cuda", torch.bfloat16, (20, 20), (9, 0), False),
        ("cuda", torch.bfloat16, (224, 224), (9, 0), False),
        ("cuda", torch.bfloat16, (128, 128), (7, 5), False),
        ("cpu", torch.bfloat16, (128, 128), (9, 0), False),
    ],
)
def test_what_torchs_flash_attention_computes(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    dtype: torch.dtype,
    widths: tuple[int, int],
    capability: tuple[int, int],
    can: bool,
):
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    width, value_width = widths
    assert shared_attention.in_one_call(torch.device(device), dtype, width=width, value_width=value_width) == can


def test_masks_count_where_they_are_made(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))

    def score(name: str, device: str, attention: str = "sdpa") -> float:
        config = ModelConfig(name_or_path="any", dtype="bfloat16", attn_implementation=attention)
        found = prefix_sharing_for(FAMILIES[name].config(), config, SHARES, device=torch.device(device))
        assert found is not None
        return found.score

    assert score("qwen2", "cpu") > 0
    assert score("qwen2", "cuda") == score("qwen2", "cpu", "flash_attention_2") == 0
    for name in ("gemma2", "gpt_oss", "deepseek_v3"):
        assert score(name, "cuda") == score(name, "cpu") > 0


def test_bfloat16_is_as_near_to_float32_as_padded_rows_are():
    sequences, found = forest_of_all_kinds(), {}
    for dtype in (torch.float32, torch.bfloat16):
        policy = Policy(of_family("qwen2").to(dtype), temperature=0.9, chunk_tokens=8)
        for prefixes in (None, SHARING):
            found[dtype, prefixes] = learnt(policy, batches([sequences], prefixes))[2]
    exact = found[torch.float32, None]
    padded, shared = ((found[torch.bfloat16, prefixes] - exact).norm() / exact.norm() for prefixes in (None, SHARING))
    assert shared < 1.2 * padded < 0.1


def test_a_micro_batch_without_sequences_computes_a_token_and_reads_a_layout():
    policy = Policy(make_model(tied=True, hidden_size=64), temperature=0.9, chunk_tokens=8)
    (batch,) = batches([[]], SHARING)
    logprobs_N, _ = policy(*batch.inputs)
    assert batch.input_ids_BL.shape == (1, 1)
    assert logprobs_N.numel() == 0
    logprobs_N.sum().backward()


@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5_text"])
def test_layers_that_do_not_read_the_layout_are_an_error_and_their_families_are_padded(
    name: str, caplog: pytest.LogCaptureFixture
):
    model = of_family(name)
    caplog.set_level("INFO")
    assert prefix_sharing_for(model.config, ModelConfig(name_or_path="any"), SHARES, device=CPU) is None
    assert f"shared prefixes are off for {name}" in caplog.text
    (batch,) = batches([forest_of_all_kinds()], SHARING)
    with pytest.raises(RunError, match=r"1 of 4 layers of qwen3_\w+ read the shared prefixes"):
        Policy(model, temperature=0.9, chunk_tokens=8)(*batch.inputs)


def test_never_is_padded_rows():
    config = FAMILIES["qwen2"].config()
    assert (
        prefix_sharing_for(config, ModelConfig(name_or_path="any"), DeepSpeedConfig(share_prefixes="never"), device=CPU)
        is None
    )


def test_sequences_of_equal_length_that_share_nothing_are_their_padded_rows():
    rng = random.Random(0)
    prompts = [[number, *(rng.randrange(5, 100) for _ in range(6))] for number in range(5, 14)]
    taken = [
        (single_turn(f"e-{prompt[0]}", prompt, prompt[:4], versions=[(VERSION, 4)], finish_reason="stop"), 0.5)
        for prompt in prompts
    ]
    expected, found = both_ways(of_family("mistral"), decided(taken))
    torch.testing.assert_close(found[0], expected[0], rtol=1e-6, atol=2e-6)
    assert (found[2] - expected[2]).norm() < 2e-6 * expected[2].norm()
