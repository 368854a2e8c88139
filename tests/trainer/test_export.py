"""The buckets of a push as they are filled: sizes, turns, and ranks that only help to gather."""

from contextlib import contextmanager

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from grpo_proto.checkpoint_layout import checkpoint_layout, plain_layout
from grpo_proto.messages.weights import Backend
from grpo_proto.staging import buckets_in_the_way
from grpo_proto.transport import plan_manifest, view_tensor
from grpo_trainer.engine.export import Export, Gather
from grpo_trainer.fleet.push_plan import MIB, bucket_limit_s, plan_push

PARAMETERS = {f"w{number}": torch.full((100,), float(number)) for number in range(5)}
TRIPLES = [(name, "float32", list(tensor.shape)) for name, tensor in PARAMETERS.items()]


def no_gathering(log: list[int]):
    @contextmanager
    def gather(tensors: list[torch.Tensor]):
        log.append(len(tensors))
        yield

    return gather


@pytest.mark.parametrize(
    ("backend", "total_mib", "bucket_mib", "largest_mib"),
    [
        ("gloo", 100, None, 24),
        ("gloo", 640, None, 40),
        ("gloo", 4000, None, 64),
        ("nccl", 4000, None, 250),
        ("nccl", 5000, None, 256),
        ("nccl", 100, 7, 7),
    ],
)
def test_buckets_are_a_sixteenth_of_the_weights_within_bounds(
    backend: Backend, total_mib: int, bucket_mib: int | None, largest_mib: int
):
    tensors = [(f"w{number}", "uint8", [MIB]) for number in range(total_mib)]
    assert max(plan_push(tensors, bucket_mib, backend).bucket_bytes) == largest_mib * MIB


def test_buckets_of_a_large_model_grow_over_nccl_and_their_time_out_over_gloo_with_them():
    """A tensor of 640 MiB takes NCCL no second: a longer limit would only keep who waits for a member that hangs."""
    tensors = [(f"w{number}", "uint8", [64 * MIB]) for number in range(100)] + [("head", "uint8", [640 * MIB])]
    manifest = plan_push(tensors, None, "nccl")
    assert sorted(set(manifest.bucket_bytes)) == [256 * MIB, 640 * MIB]
    assert bucket_limit_s(manifest, 30.0, backend="nccl", push_deadline_s=1000.0) == 30.0
    manifest = plan_push(tensors, None, "gloo")
    assert bucket_limit_s(manifest, 30.0, backend="gloo", push_deadline_s=1000.0) == 300.0
    assert bucket_limit_s(manifest, 30.0, backend="gloo", push_deadline_s=200.0) == 200.0
    assert bucket_limit_s(plan_push(tensors[:4], None, "gloo"), 30.0, backend="gloo", push_deadline_s=200.0) == 30.0


def export_of(tensors: dict[str, torch.Tensor], gather: Gather, *, fills: bool) -> Export:
    pieces = plain_layout(tensors)
    return Export("full", pieces, tensors, device=torch.device("cpu"), gather=gather, sharded=False, fills=fills)


def test_every_bucket_holds_its_tensors_until_the_next_but_one_is_asked_for():
    gathered: list[int] = []
    manifest = plan_manifest(TRIPLES, bucket_bytes=400)
    buckets = export_of(PARAMETERS, no_gathering(gathered), fills=True).buckets(manifest, "cpu")
    before = None
    for number, bucket in enumerate(buckets):
        if before is not None:
            # It may still be on its way while this one was filled.
            assert torch.equal(view_tensor(before, manifest.tensors[number - 1]), PARAMETERS[f"w{number - 1}"])
        assert torch.equal(view_tensor(bucket, manifest.tensors[number]), PARAMETERS[f"w{number}"])
        before = bucket
    assert gathered == [1] * 5


def test_two_oversized_tensors_in_a_row_share_a_buffer_and_the_others_stay():
    parameters = {"embedding": torch.full((500,), 1.0), "head": torch.full((400,), 2.0)}
    parameters |= {f"w{number}": torch.full((48,), 3.0 + number) for number in range(4)}
    manifest = plan_manifest([(name, "float32", list(p.shape)) for name, p in parameters.items()], bucket_bytes=400)
    assert buckets_in_the_way(manifest) == {0}
    buckets = export_of(parameters, no_gathering([]), fills=True).buckets(manifest, "cpu")
    embedding = next(buckets)
    assert (embedding.view(torch.float32) == 1.0).all()
    head, first, second = buckets
    assert head.data_ptr() == embedding.data_ptr()
    assert (head.view(torch.float32) == 2.0).all()
    assert first.view(torch.float32)[[0, 48]].tolist() == [3.0, 4.0]
    assert second.view(torch.float32)[[0, 48]].tolist() == [5.0, 6.0]


def test_a_push_after_the_weights_have_changed_sends_the_new_ones():
    parameters = {"w": torch.zeros(100)}
    manifest = plan_manifest([("w", "float32", [100])])
    outgoing = export_of(parameters, no_gathering([]), fills=True)
    first = next(outgoing.buckets(manifest, "cpu"))
    parameters["w"] += 3
    again = next(outgoing.buckets(manifest, "cpu"))
    assert torch.equal(view_tensor(again, manifest.tensors[0]), torch.full((100,), 3.0))
    assert again.data_ptr() == first.data_ptr()


def test_another_rank_gathers_as_often_and_fills_nothing():
    gathered: list[int] = []
    manifest = plan_manifest(TRIPLES, bucket_bytes=800)
    buckets = list(export_of(PARAMETERS, no_gathering(gathered), fills=False).buckets(manifest, "cpu"))
    assert [bucket.numel() for bucket in buckets] == [0, 0, 0]
    assert gathered == [2, 2, 1]


def test_experts_of_a_layer_are_pushed_without_a_copy_of_all_of_them():
    """Their copy in fresh memory would cost more than the whole transfer."""
    config = Qwen3MoeConfig(
        vocab_size=8, hidden_size=8, moe_intermediate_size=4, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=4, num_experts=2, num_experts_per_tok=1,
    )  # fmt: skip
    model = Qwen3MoeForCausalLM(config)
    experts = "model.layers.0.mlp.experts"
    shapes = {
        f"{experts}.{number}.{name}.weight": (8, 4) if name == "down_proj" else (4, 8)
        for number in range(2)
        for name in ("gate_proj", "up_proj", "down_proj")
    }
    sources = model.state_dict()
    fused = sources[f"{experts}.gate_up_proj"]
    pieces = checkpoint_layout(model, shapes)
    made = {name: t for piece in pieces for name, t in piece.restore([sources[s] for s in piece.sources]).items()}
    assert set(made) == set(shapes)
    assert torch.equal(made[f"{experts}.1.up_proj.weight"], fused[1, 4:])
    owned = {tensor.untyped_storage().data_ptr() for tensor in sources.values()}
    assert {tensor.untyped_storage().data_ptr() for tensor in made.values()} <= owned
