"""Rows that two ranks compute together: every family that shares prefixes, experts, and what is refused."""

import json
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from tests.rollout.families.models import FAMILIES
from tests.trainer.gloo_ranks import outputs_of_two_ranks

from grpo_trainer.config.model import ModelConfig
from grpo_trainer.config.optimization import DeepSpeedConfig
from grpo_trainer.engine.prefix_sharing import SHARING_FAMILIES, prefix_sharing_for
from grpo_trainer.errors import UsageError

PROGRAM = """
import json
import torch
from tests.trainer.made_forests import SHARING, batches, forest_of_all_kinds, learnt, of_family
from tests.trainer.test_sequence_parallel import NAMES
from tests.trainer.test_shared_prefixes import varlen
from transformers import modeling_flash_attention_utils as flash
from grpo_trainer.engine.policy import Policy
from grpo_trainer.engine.sequence_parallel import join_sequence_group
from grpo_trainer.errors import UsageError

torch.set_num_threads(1)
try:
    join_sequence_group(3, timeout_s=60.0)
except UsageError as error:
    found = {"refused": str(error)}
group = join_sequence_group(2, timeout_s=60.0)

def of_all(part):
    dist.all_reduce(part)
    return part

def differences(model, sequences, cut):
    alone, together = (Policy(model, temperature=0.9, chunk_tokens=8, group=of) for of in (None, group))
    expected = learnt(alone, batches([sequences], None))
    return compared(expected, learnt(together, batches([sequences[:cut], sequences[cut:]], SHARING)))

def compared(expected, found):
    gradient = of_all(found[2])
    return {
        "logprobs": (found[0] - expected[0]).abs().max().item(),
        "loss": abs(found[1] - expected[1]),
        "gradient": ((gradient - expected[2]).norm() / expected[2].norm()).item(),
    }

def balance(policy, batch):
    policy.zero_grad()
    *_, loss = policy(*batch.inputs, None, batch.token_counts_BL)
    loss.backward()
    gate = policy.model.model.layers[0].mlp.gate.weight.grad
    return loss.detach(), gate if policy.group is None else of_all(gate)

sequences = forest_of_all_kinds()
for name in NAMES:
    found[name] = differences(of_family(name), sequences, 7)
# One token is less than a share for each; equal rows share nothing.
short = [one for one in sequences if one.num_tokens == min(map(lambda s: s.num_tokens, sequences))][:1]
found["short"] = differences(of_family("qwen2"), short, 0)
model = of_family("qwen3_moe")
[batch] = batches([sequences], SHARING)
policies = [Policy(model, temperature=0.9, chunk_tokens=8, group=of) for of in (None, group)]
(expected, of_alone), (computed, of_group) = (balance(policy, batch) for policy in policies)
found["balance"] = [expected.item(), computed.item(), ((of_group - of_alone).norm() / of_alone.norm()).item()]
# Flash attention through transformers' own code, with references in place of the kernels, which need a GPU.
def fixed_length(q, k, v, **others):
    b, n = q.shape[:2]
    ends = torch.arange(0, b * n + 1, n, dtype=torch.int32)
    flat = (tensor.flatten(0, 1) for tensor in (q, k, v))
    return varlen(*flat, ends, ends, n, n, **others).unflatten(0, (b, n))

kernels = ((fixed_length, varlen, None, None, None), (flash._lazy_define_process_function(varlen), dict))
flash.lazy_import_flash_attention = lambda *_, **__: kernels
for name, some in (("flash", sequences), ("flash, one sequence", sequences[:1])):
    model = of_family("qwen2")
    expected = learnt(Policy(model, temperature=0.9, chunk_tokens=8), batches([some], None))
    model.get_decoder().config._attn_implementation = "flash_attention_2"
    computed = learnt(Policy(model, temperature=0.9, chunk_tokens=8, group=group), batches([some], SHARING))
    found[name] = compared(expected, computed)
print(json.dumps(found))
"""
NAMES = [*SHARING_FAMILIES, "qwen2_untied"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return [json.loads(text) for text in outputs_of_two_ranks(PROGRAM, tmp_path_factory.mktemp("together"))]


@pytest.mark.processes
class TestTogether:
    @pytest.mark.parametrize("name", [*NAMES, "short", "flash", "flash, one sequence"])
    def test_two_ranks_have_the_logprobs_loss_and_gradient_of_one(self, found: list[dict[str, Any]], name: str):
        for of_rank in found:
            assert of_rank[name]["logprobs"] < 4e-6
            assert of_rank[name]["loss"] < 2e-6
            assert of_rank[name]["gradient"] < 2e-6

    def test_the_balance_of_experts_is_that_of_the_whole_row(self, found: list[dict[str, Any]]):
        for of_rank in found:
            expected, computed, difference = of_rank["balance"]
            assert computed == pytest.approx(expected, rel=1e-6)
            assert difference < 2e-6

    def test_ranks_have_to_make_whole_groups(self, found: list[dict[str, Any]]):
        for of_rank in found:
            assert "sequence_parallel_size is 3, and 2 ranks do not make whole groups of 3" in of_rank["refused"]


@pytest.mark.parametrize(
    ("family", "size", "told"),
    [("qwen3_next", 2, "qwen3_next is no family whose rows can be dealt out"), ("qwen2", 3, "attention heads")],
)
def test_a_model_that_ranks_cannot_compute_together_is_refused(family: str, size: int, told: str):
    ranks = DeepSpeedConfig(sequence_parallel_size=size)
    with pytest.raises(UsageError, match=told):
        prefix_sharing_for(FAMILIES[family].config(), ModelConfig(name_or_path="m"), ranks, device=torch.device("cpu"))


def test_rows_without_shared_prefixes_cannot_be_dealt_out():
    with pytest.raises(ValidationError, match="share_prefixes is never"):
        DeepSpeedConfig(sequence_parallel_size=2, share_prefixes="never")
