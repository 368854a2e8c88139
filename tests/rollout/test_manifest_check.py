"""The model's own list of tensors, and manifests that are not it."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from grpo_proto.messages.weights import Manifest, TensorSpec
from grpo_proto.server.refusal import Refusal
from grpo_proto.transport import plan_manifest
from grpo_rollout.manifest_check import Expected, ModelTensors, check_manifest, model_tensors
from tests.tiny_model import make_model, save_tiny_model


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """A tied and an untied one."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return {tied: save_tiny_model(folder / str(tied), tied=tied) for tied in (True, False)}


@pytest.fixture(scope="module")
def expected(checkpoints: dict[bool, Path]) -> dict[str, Expected]:
    return listed(checkpoints[False]).expected


def listed(checkpoint: Path, dtype: torch.dtype = torch.bfloat16) -> ModelTensors:
    config = AutoConfig.from_pretrained(checkpoint)
    return model_tensors(config, config, dtype, checkpoint)


def manifest(expected, change=lambda triples: triples) -> Manifest:
    return plan_manifest(change([(name, dtype, shape) for name, (dtype, shape) in expected.items()]), 40_000)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_it_is_what_a_trainer_with_the_same_class_has(checkpoints: dict[bool, Path], tied: bool, dtype: torch.dtype):
    model = make_model(tied=tied, dtype=dtype)
    ours = {name: (spec.dtype, spec.shape) for name, spec in listed(checkpoints[tied], dtype).expected.items()}
    theirs = {name: (str(p.dtype).removeprefix("torch."), tuple(p.shape)) for name, p in model.named_parameters()}
    assert ours == theirs
    assert ("lm_head.weight" in ours) == (not tied)


def test_the_whole_list_passes_in_any_order(expected: dict[str, Expected]):
    check_manifest(manifest(expected), [], expected)
    check_manifest(manifest(expected, lambda triples: triples[::-1]), [], expected)


def test_what_is_frozen_is_declared_absent(expected: dict[str, Expected]):
    frozen = [name for name in expected if name.startswith("model.layers.0.")]
    trained = manifest(expected, lambda triples: [triple for triple in triples if triple[0] not in frozen])
    check_manifest(trained, frozen, expected)
    for absent, named in (
        (frozen[1:], f"{frozen[0]} is missing"),
        ([*frozen, "model.extra"], "model.extra is unknown"),
        ([*frozen, "model.norm.weight"], "model.norm.weight is pushed and declared absent"),
    ):
        with pytest.raises(Refusal, match=named):
            check_manifest(trained, absent, expected)


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
def test_anything_else_is_named(expected: dict[str, Expected], change, named: str):
    with pytest.raises(Refusal, match=named) as refused:
        check_manifest(manifest(expected, change), [], expected)
    assert refused.value.status == 422


def with_layout(expected, offsets=lambda spec: spec.offset, sizes=lambda sizes: sizes) -> Manifest:
    planned = manifest(expected)
    tensors = [TensorSpec(**spec.model_dump() | {"offset": offsets(spec)}) for spec in planned.tensors]
    return Manifest(tensors=tensors, bucket_bytes=sizes(planned.bucket_bytes))


def test_the_layout_of_buckets_is_checked(expected: dict[str, Expected]):
    for wrong in (
        with_layout(expected, sizes=lambda sizes: [10**12, *sizes[1:]]),
        with_layout(expected, sizes=lambda sizes: [*sizes, 16]),
        with_layout(expected, offsets=lambda spec: 0),
        with_layout(expected, offsets=lambda spec: max(0, spec.offset - 2)),
    ):
        with pytest.raises(Refusal) as refused:
            check_manifest(wrong, [], expected)
        assert refused.value.detail.type == "manifest_layout"


def test_another_digest_is_refused(expected: dict[str, Expected]):
    planned = manifest(expected)
    with pytest.raises(Refusal, match="md5"):
        check_manifest(planned.model_copy(update={"digest_algorithm": "md5"}), [], expected)
