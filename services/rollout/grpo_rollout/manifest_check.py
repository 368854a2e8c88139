"""Check the manifest of a push against the model's list of tensors, before any byte moves.

A push must name every tensor of the model, with the shape and the dtype that are served, and nothing else: vLLM loads
a partial list without complaint, and a layer that received nothing keeps its old tensors.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from grpo_proto.messages.weights import DIGEST_ALGORITHM, Manifest
from grpo_proto.server.refusal import Refusal
from grpo_proto.transport import ALIGNMENT_BYTES, dtype_name

SHOWN = 5


class Expected(NamedTuple):
    dtype: str
    shape: tuple[int, ...]


def model_tensors(hf_config: Any, dtype: torch.dtype) -> dict[str, Expected]:
    """Map the checkpoint name of every parameter to its dtype and shape.

    Build transformers' own class on the meta device: nothing is allocated, and a trainer that uses the same class has
    the same list. Of parameters tied together only the first is listed, as in `named_parameters`.
    Raises whatever transformers raises for an unknown architecture.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(hf_config, dtype=dtype)
    return {
        name: Expected(dtype_name(parameter.dtype), tuple(parameter.shape))
        for name, parameter in model.named_parameters()
    }


def check_manifest(manifest: Manifest, expected: Mapping[str, Expected]) -> None:
    """Raises Refusal (422) that names the tensors which differ from the model's list, or the faulty bucket."""
    given = {spec.name: Expected(spec.dtype, tuple(spec.shape)) for spec in manifest.tensors}
    problems = [f"{name} is missing" for name in expected if name not in given]
    problems += [f"{name} is unknown" for name in given if name not in expected]
    for name, tensor in given.items():
        wanted = expected.get(name, tensor)
        if tensor.shape != wanted.shape:
            problems.append(f"{name} has shape {list(tensor.shape)} and must have {list(wanted.shape)}")
        elif tensor.dtype != wanted.dtype:
            problems.append(f"{name} has dtype {tensor.dtype} and is served as {wanted.dtype}")
    if problems:
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise Refusal.invalid(
            "manifest_mismatch",
            "the manifest differs from the model's list of tensors: " + "; ".join(problems[:SHOWN]) + more,
            "push every parameter once (of tied parameters the first), in the dtype that GET /info shows",
        )
    check_layout(manifest)


def check_layout(manifest: Manifest) -> None:
    """Raises Refusal (422) unless tensors are aligned, do not overlap, and fill their buckets to the end, and the
    digest is one that this server computes."""
    if manifest.digest_algorithm != DIGEST_ALGORITHM:
        raise Refusal.invalid(
            "digest_algorithm",
            f"digest algorithm {manifest.digest_algorithm} is unknown",
            f"use {DIGEST_ALGORITHM}",
        )
    ends = [0] * len(manifest.bucket_bytes)
    for spec in sorted(manifest.tensors, key=lambda spec: (spec.bucket, spec.offset)):
        if spec.offset % ALIGNMENT_BYTES or spec.offset < ends[spec.bucket]:
            raise Refusal.invalid(
                "manifest_layout",
                f"{spec.name} at offset {spec.offset} of bucket {spec.bucket} overlaps or is not aligned",
                f"lay tensors out one after the other, at multiples of {ALIGNMENT_BYTES} bytes",
            )
        ends[spec.bucket] = spec.offset + spec.num_bytes
    for bucket, (size, end) in enumerate(zip(manifest.bucket_bytes, ends, strict=True)):
        if size != -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES or size == 0:
            raise Refusal.invalid("manifest_layout", f"bucket {bucket} has {size} bytes and its tensors end at {end}")
