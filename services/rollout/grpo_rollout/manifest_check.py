"""Check the manifest of a push against the model's list of tensors, before any byte moves.

A push must name every tensor of the model as its checkpoint has it, with the shape and the dtype that are served, and
nothing else: vLLM loads a partial list without complaint, and a layer that received nothing keeps its old tensors. What
the trainer keeps frozen is declared absent.
"""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import torch

from grpo_proto.checkpoint_files import read_headers
from grpo_proto.messages.weights import DIGEST_ALGORITHM, Manifest
from grpo_proto.server.refusal import Refusal
from grpo_proto.transport import ALIGNMENT_BYTES, dtype_name

SHOWN = 5


class Expected(NamedTuple):
    dtype: str
    shape: tuple[int, ...]


class ModelTensors(NamedTuple):
    """The tensors of the checkpoint that is served, by name."""

    expected: dict[str, Expected]
    """What a push has to name. Of tensors tied together only the first, as in `named_parameters`."""
    unknown: list[str]
    """Tensors that the class does not have: of a vision tower, for a class of text alone; of a head for speculation."""


def model_tensors(hf_config: Any, hf_text_config: Any, dtype: torch.dtype, folder: Path) -> ModelTensors:
    """List the tensors of the checkpoint in `folder`.

    Build transformers' own class on the meta device: nothing is allocated, and a trainer that uses the same class and
    checkpoint has the same list. Raises whatever transformers raises for an unknown architecture, FileNotFoundError
    when the folder has no safetensors, and LayoutError.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    from grpo_proto.checkpoint_layout import checkpoint_layout

    classes = (AutoModelForCausalLM, AutoModelForImageTextToText)
    known = [each for each in classes if type(hf_config) in each._model_mapping]
    with torch.device("meta"):
        if known:
            model = known[0].from_config(hf_config, dtype=dtype)
        else:
            model = AutoModelForCausalLM.from_config(hf_text_config, dtype=dtype)
    shapes = {name: header.shape for name, header in read_headers(folder).items()}
    layout = checkpoint_layout(model, shapes)
    expected = {
        name: Expected(dtype_name(piece.dtype), shape) for piece in layout for name, shape in piece.shapes.items()
    }
    return ModelTensors(expected, [name for name in shapes if name not in expected])


def check_manifest(
    manifest: Manifest, absent: Sequence[str], expected: Mapping[str, Expected], *, overwritten: Set[str] = frozenset()
) -> None:
    """Check that `manifest` and `absent` together name every tensor of the model once.

    Raises Refusal (422) that names the tensors which differ from the model's list, those declared absent that an
    earlier push has `overwritten`, or the faulty bucket.
    """
    given = {spec.name: Expected(spec.dtype, tuple(spec.shape)) for spec in manifest.tensors}
    left_out = set(absent)
    problems = [f"{name} is missing" for name in expected if name not in given and name not in left_out]
    problems += [f"{name} is unknown" for name in (*given, *absent) if name not in expected]
    problems += [f"{name} is pushed and declared absent" for name in absent if name in given]
    for name, tensor in given.items():
        wanted = expected.get(name, tensor)
        if tensor.shape != wanted.shape:
            problems.append(f"{name} has shape {list(tensor.shape)} and must have {list(wanted.shape)}")
        elif tensor.dtype != wanted.dtype:
            problems.append(f"{name} has dtype {tensor.dtype} and is served as {wanted.dtype}")
    if problems:
        raise Refusal.invalid(
            "manifest_mismatch",
            f"the manifest differs from the model's list of tensors: {first_of(problems)}",
            "push every tensor of the checkpoint once (of tied ones the first), or declare it absent; dtype: GET /info",
        )
    if changed := [name for name in absent if name in overwritten]:
        raise Refusal.invalid(
            "absent_overwritten",
            "what is declared absent is not as it was loaded from disk, an earlier push has overwritten it: "
            f"{first_of(changed)}",
            "start the server again, or push these tensors, too (model.train_vision_tower)",
        )
    check_layout(manifest)


def first_of(problems: Sequence[str]) -> str:
    """The first problems, and how many more there are: one foreign model differs in every tensor."""
    more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    return "; ".join(problems[:SHOWN]) + more


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
