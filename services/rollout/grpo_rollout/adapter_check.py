"""Check the push of an adapter before any byte moves: its configuration, its base, its tensors.

vLLM ignores what it does not know: a tensor of a foreign layer vanishes, a layer without tensors stays as the base has
it, and a matrix that is too small fills a corner of its slot. So every tensor must belong to a layer that takes an
adapter, with the layer's sizes and the configuration's rank.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm.config.lora import LoRAConfig
from vllm.lora.peft_helper import PEFTHelper

from grpo_proto.checkpoint_files import checkpoint_digest
from grpo_proto.messages.weights import Manifest, TensorSpec
from grpo_proto.server.refusal import Refusal

from .manifest_check import check_layout, first_of

logger = logging.getLogger("vllm.grpo_rollout.adapter_check")

DTYPES = ("float32", "bfloat16", "float16")
NAME = re.compile(r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(?(embedding)|\.weight)")
"""A tensor as PEFT saves it: `base_model.model.model.layers.0.mlp.up_proj.lora_A.weight`; of an embedding
`….embed_tokens.lora_embedding_A`."""


class BaseDigest:
    """The digest of the checkpoint that the server loaded. A thread computes it: that reads every byte."""

    def __init__(self, find_folder: Callable[[], Path]):
        self.digest: str | None = None
        self._problem: str | None = None
        self._task = asyncio.create_task(self._compute(find_folder))

    async def _compute(self, find_folder: Callable[[], Path]) -> None:
        try:
            self.digest = await asyncio.to_thread(lambda: checkpoint_digest(find_folder()))
        except Exception as error:
            self._problem = f"{type(error).__name__}: {error}"
            logger.warning("the checkpoint has no digest, so adapters will be refused: %s", self._problem)

    async def check(self, sent: str | None, *, timeout_s: float) -> None:
        """Raises Refusal: 409 for another base, or one without a digest; 503 while it is being computed."""
        if self.digest is None:
            await asyncio.wait((self._task,), timeout=timeout_s)
        if self._problem is not None:
            raise Refusal.conflict(
                "base_digest_unknown",
                f"the served checkpoint has no digest: {self._problem}",
                "serve a checkpoint in safetensors",
            )
        if self.digest is None:
            raise Refusal.busy(503, "base_digest_unknown", "the digest of the checkpoint is still being computed", 5.0)
        if sent != self.digest:
            raise Refusal.conflict(
                "other_base",
                f"the adapter was trained on the checkpoint with digest {sent}, and {self.digest} is served",
                "serve the checkpoint that the adapter is trained on; GET /info shows base_digest",
            )


def check_config(peft_config: dict[str, Any] | None, limits: LoRAConfig) -> PEFTHelper:
    """Return vLLM's reading of `adapter_config.json`. Raises Refusal (422) for an adapter that cannot be served."""
    if peft_config is None:
        raise Refusal.invalid("adapter_config", "peft_config is missing", "send adapter_config.json of PEFT")
    try:
        helper = PEFTHelper.from_dict(peft_config)
        helper.validate_legal(limits)
        problems = [] if not helper.modules_to_save else [f"modules_to_save is {helper.modules_to_save}"]
    except (ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        problems = [str(error)]
    if problems:
        raise Refusal.invalid(
            "adapter_config",
            f"peft_config cannot be served: {'; '.join(problems)}",
            f"plain LoRA without DoRA, bias and modules_to_save, at most rank {limits.max_lora_rank}; a greater rank "
            "needs a greater --max-lora-rank of the server",
        )
    return helper


def check_tensors(manifest: Manifest, helper: PEFTHelper, sizes: Mapping[str, Sequence[int] | None]) -> None:
    """Raises Refusal (422) that names the tensors which fit no layer, or the faulty bucket.

    `sizes` maps each tensor of a layer that takes an adapter to the layer's columns and rows, None where unknown.
    """
    problems = []
    sides: dict[str, set[str]] = {}
    for spec in manifest.tensors:
        match = NAME.fullmatch(spec.name)
        if match is None:
            problems.append(f"{spec.name} is not named as PEFT names the matrices of an adapter")
            continue
        sides.setdefault(match["module"], set()).add(match["side"])
        if spec.name not in sizes:
            problems.append(f"{spec.name} belongs to no layer of the model that takes an adapter")
        else:
            problems += _spec_problems(spec, match["side"], _rank(helper, match["module"]), sizes[spec.name])
    problems += [f"{module} has no lora_{'BA'[side == {'B'}]}" for module, side in sides.items() if len(side) == 1]
    if problems:
        raise Refusal.invalid(
            "adapter_mismatch",
            f"the adapter does not fit the model: {first_of(problems)}",
            "push both matrices of each adapted layer as PEFT saves them: A [rank, columns], B [rows, rank]",
        )
    check_layout(manifest)


def tensor_names(manifest: Manifest) -> list[str]:
    """Return the names that can belong to an adapter: vLLM raises an error for any other name."""
    return [spec.name for spec in manifest.tensors if NAME.fullmatch(spec.name)]


def _rank(helper: PEFTHelper, module: str) -> int:
    rank: int = helper.get_rank_and_scaling(module.removeprefix("base_model.model."))[0]
    return rank


def _spec_problems(spec: TensorSpec, side: str, rank: int, sizes: Sequence[int] | None) -> list[str]:
    if spec.dtype not in DTYPES:
        return [f"{spec.name} has dtype {spec.dtype}, which is none of {', '.join(DTYPES)}"]
    if sizes is None:
        return []
    wanted = [rank, sizes[0]] if side == "A" else [sizes[1], rank]
    return [] if spec.shape == wanted else [f"{spec.name} has shape {spec.shape} and must have {wanted}"]
