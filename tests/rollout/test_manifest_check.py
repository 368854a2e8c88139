"""The model's own list of tensors, and manifests that are not it."""

import pytest
import torch

from grpo_proto.messages.weights import Manifest, TensorSpec
from grpo_proto.server.refusal import Refusal
from grpo_proto.transport import plan_manifest
from grpo_rollout.manifest_check import check_manifest, model_tensors
from tests.tiny_model import make_model


def listed(*, tied: bool = False, dtype: torch.dtype = torch.bfloat16):
    return model_tensors(make_model(tied=tied).config, dtype)


def manifest(expected, change=lambda triples: triples) -> Manifest:
    return plan_manifest(change([(name, dtype, shape) for name, (dtype, shape) in expected.items()]), 40_000)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_it_is_what_a_trainer_with_the_same_class_has(tied: bool, dtype: torch.dtype):
    model = make_model(tied=tied, dtype=dtype)
    ours = {name: (spec.dtype, spec.shape) for name, spec in listed(tied=tied, dtype=dtype).items()}
    theirs = {name: (str(p.dtype).removeprefix("torch."), tuple(p.shape)) for name, p in model.named_parameters()}
    assert ours == theirs
    assert ("lm_head.weight" in ours) == (not tied)


def test_the_whole_list_passes_in_any_order():
    expected = listed()
    check_manifest(manifest(expected), expected)
    check_manifest(manifest(expected, lambda triples: triples[::-1]), expected)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda triples: triples[:-1], "lm_head.weight is missing"),
        (lambda triples: [*triples, ("model.extra", "bfloat16", (2,))], "model.extra is unknown"),
        (lambda triples: [(triples[0][0], "bfloat16", (3, 128)), *triples[1:]], r"shape \[3, 128\] and must have"),
        (lambda triples: [(triples[0][0], "bfloat16", (128, 101)), *triples[1:]], r"shape \[128, 101\]"),
        (lambda triples: [(name, "float32", shape) for name, _, shape in triples], "is served as bfloat16"),
    ],
)
def test_anything_else_is_named(change, named: str):
    expected = listed()
    with pytest.raises(Refusal, match=named) as refused:
        check_manifest(manifest(expected, change), expected)
    assert refused.value.status == 422


def with_layout(expected, offsets=lambda spec: spec.offset, sizes=lambda sizes: sizes) -> Manifest:
    planned = manifest(expected)
    tensors = [TensorSpec(**spec.model_dump() | {"offset": offsets(spec)}) for spec in planned.tensors]
    return Manifest(tensors=tensors, bucket_bytes=sizes(planned.bucket_bytes))


def test_the_layout_of_buckets_is_checked():
    expected = listed()
    for wrong in (
        with_layout(expected, sizes=lambda sizes: [10**12, *sizes[1:]]),
        with_layout(expected, sizes=lambda sizes: [*sizes, 16]),
        with_layout(expected, offsets=lambda spec: 0),
        with_layout(expected, offsets=lambda spec: max(0, spec.offset - 2)),
    ):
        with pytest.raises(Refusal) as refused:
            check_manifest(wrong, expected)
        assert refused.value.detail.type == "manifest_layout"


def test_another_digest_is_refused():
    expected = listed()
    planned = manifest(expected)
    with pytest.raises(Refusal, match="md5"):
        check_manifest(planned.model_copy(update={"digest_algorithm": "md5"}), expected)
