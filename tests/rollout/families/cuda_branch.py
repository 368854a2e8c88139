"""A program: pushes on vLLM's CUDA branch, without a GPU: `python -m tests.rollout.families.cuda_branch`.

vLLM believes that it runs on an H100. The models are built and loaded as there, with the Triton backend for experts,
and lie in CPU memory. No kernel of a GPU can be started; the experts' kernel has a stand-in of plain products, which
reads the weights where a kernel reads them. Prints one JSON object.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

os.environ |= {"VLLM_PLUGINS": "", "VLLM_LOGGING_LEVEL": "ERROR", "CUDA_VISIBLE_DEVICES": ""}

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.fused_moe.experts import triton_moe  # noqa: F401  before the platform changes
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.quantization.online import base  # noqa: F401  the same
from vllm.model_executor.model_loader import get_model_loader
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability

from grpo_proto.messages.weights import BeginRequest
from grpo_proto.transport import plan_manifest, view_tensor
from grpo_rollout import loaders
from grpo_rollout.loaders import FullLoader
from grpo_trainer.engine.export import Export
from grpo_trainer.engine.model import pieces_to_push
from tests.rollout.families.in_process import policy_of
from tests.rollout.families.models import Family, save_model
from tests.rollout.families.models import _of as config_of

EXPERTS = Family(
    config_of("MixtralConfig", num_local_experts=8, num_experts_per_tok=2, hidden_size=256, intermediate_size=512)
)
"""A layer's experts outweigh everything else, as in real ones."""
DENSE = {
    "untied": Family(
        config_of("Qwen2Config", vocab_size=2000, hidden_size=512, head_dim=128, tie_word_embeddings=False)
    ),
    "tied": Family(config_of("Qwen2Config", tie_word_embeddings=True)),
    "fused": Family(config_of("Phi3Config")),
}
"""The first with embeddings that outweigh the rest, of a size that vLLM fills up."""
BUCKET_BYTES = 1_000_000


def believe_in_an_h100() -> None:
    """Change the class of vLLM's platform, which every module of vLLM holds by now."""
    sys.modules["vllm._C_stable_libtorch"] = ModuleType("kernels of a GPU, which nothing calls here")
    from vllm.platforms.cuda import NonNvmlCudaPlatform

    class H100(NonNvmlCudaPlatform):
        get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(9, 0))
        get_device_name = classmethod(lambda cls, device_id=0: "NVIDIA H100 80GB HBM3")
        get_device_total_memory = classmethod(lambda cls, device_id=0: 80 * 2**30)
        device_count = classmethod(lambda cls: 1)
        num_compute_units = classmethod(lambda cls, device_id=0: 132)
        log_warnings = classmethod(lambda cls: None)
        is_pin_memory_available = classmethod(lambda cls: False)

    current_platform.__class__ = H100
    torch.accelerator.empty_cache = lambda: None
    torch.accelerator.max_memory_allocated = lambda: 0


def vllm_model(folder: Path) -> tuple[Any, torch.nn.Module]:
    config = EngineArgs(
        model=str(folder), skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=128
    ).create_engine_config()
    config.device_config.device = torch.device("cpu")
    with set_current_vllm_config(config):
        if not torch.distributed.is_initialized():
            store = Path(tempfile.mkdtemp()) / "store"
            init_distributed_environment(1, 0, f"file://{store}", 0, "gloo")
            initialize_model_parallel(1, 1)
        return config, get_model_loader(config.load_config).load_model(
            vllm_config=config, model_config=config.model_config
        )


def experts_by_plain_products(
    method: Any, *, layer: Any, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor, **_: Any
) -> torch.Tensor:
    """The first of each token's experts, from the weights of `layer`."""
    rows = []
    for row, weight, expert in zip(x, topk_weights[:, 0], topk_ids[:, 0].tolist(), strict=True):
        gate, up = (layer.w13_weight[expert] @ row).chunk(2)
        rows.append(weight * (layer.w2_weight[expert] @ (torch.nn.functional.silu(gate) * up)))
    return torch.stack(rows)


def experts_of_other_memory(method: Any, *, layer: Any, **given: Any) -> torch.Tensor:
    """A kernel that holds weights of its own, which no push has reached."""
    own = SimpleNamespace(w13_weight=layer.w13_weight + 1.0, w2_weight=layer.w2_weight)
    return experts_by_plain_products(method, layer=own, **given)


class Push:
    """Pushes of one checkpoint to one model, through the server's own loader and the trainer's own export."""

    def __init__(self, config: Any, model: torch.nn.Module, family: Family, folder: Path):
        policy = policy_of(folder, family, "cpu")
        pieces, absent = pieces_to_push(policy.model, str(folder))
        export = Export(
            "full", pieces, policy.model.state_dict(keep_vars=True), absent=absent, device=torch.device("cpu"),
            gather=lambda _: nullcontext(), sharded=False, fills=True,
        )  # fmt: skip
        worker = SimpleNamespace(
            get_model=lambda: model,
            model_runner=SimpleNamespace(reset_lora_state=lambda: None),
            vllm_config=config,
            model_config=config.model_config,
        )
        self.loader = FullLoader(worker)
        self.manifest = plan_manifest(export.listed(), BUCKET_BYTES)
        self._request = BeginRequest(session=1, version=1, manifest=self.manifest, absent=absent)
        self._buckets = [bucket.clone() for bucket in export.buckets(self.manifest, "cpu")]
        self._buffer = torch.zeros(max(self.manifest.bucket_bytes), dtype=torch.uint8)

    def load(self, *, leave_out: str = "") -> None:
        self.loader.begin(self._request, unknown=[])
        for number, bucket in enumerate(self._buckets):
            view = self._buffer[: len(bucket)].copy_(bucket)
            specs = [spec for spec in self.manifest.tensors if spec.bucket == number and spec.name != leave_out]
            self.loader.load(((spec.name, view_tensor(view, spec)) for spec in specs), view)
            self._buffer.fill_(255)

    def error(self, *, leave_out: str = "") -> str | None:
        """What a push ends with."""
        try:
            self.load(leave_out=leave_out)
            self.loader.finish()
        except RuntimeError as error:
            self.loader.drop()
            return str(error)
        return None


@contextmanager
def peak_memory(found: dict[str, float], name: str) -> Iterator[None]:
    """Note the most that torch held in here beyond what it held before, in bytes."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        yield
    held = found[name] = 0.0
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        found[name] = max(found[name], held)


class Pushed:
    """A model with the weights of one seed, to which those of another are pushed."""

    def __init__(self, family: Family, folder: Path):
        first, second = (save_model(family, folder / str(seed), seed=seed) for seed in (1, 2))
        config, self.model = vllm_model(first)
        _, self._wanted = vllm_model(second)
        self._places = {name: tensor.data_ptr() for name, tensor in self.model.named_parameters()}
        self.push = Push(config, self.model, family, second)
        self.memory: dict[str, float] = {}

    def found(self) -> dict[str, Any]:
        """Push in vLLM's way, then in ours: what is not where it was, or not as a fresh load has it; the memory of
        each, in multiples of the largest layer."""
        with patch.object(loaders, "load_in_place", lambda model: None), peak_memory(self.memory, "as_vllm"):
            self.push.load()
            self.push.loader.finish()
        for tensor in self.model.parameters():
            tensor.data.zero_()
        with peak_memory(self.memory, "in_place"):
            self.push.load()
            probed = self.push.loader.finish()
        values = dict(self.model.named_parameters())
        layers = [sum(each.nbytes for each in layer.parameters(recurse=False)) for layer in self.model.modules()]
        return {
            "probed": probed,
            "moved": [name for name, tensor in values.items() if tensor.data_ptr() != self._places[name]],
            "wrong": [
                name for name, tensor in self._wanted.named_parameters() if not torch.equal(values[name], tensor)
            ],
        } | {name: held / max(layers) for name, held in self.memory.items()}


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    believe_in_an_h100()
    pushed = Pushed(EXPERTS, folder / "experts")
    methods = (getattr(module, "quant_method", None) for module in pushed.model.modules())
    experts = [method for method in methods if isinstance(method, UnquantizedFusedMoEMethod)]
    told: dict[str, Any] = {"backends": [method.unquantized_backend.name for method in experts]}
    push = pushed.push
    with patch.object(UnquantizedFusedMoEMethod, "apply", experts_by_plain_products):
        told["experts"] = pushed.found()
        told["an_expert_is_missing"] = push.error(leave_out="model.layers.1.block_sparse_moe.experts.5.w2.weight")
        told["after_it"] = push.error()
        with patch.object(UnquantizedFusedMoEMethod, "apply", experts_of_other_memory):
            told["the_kernel_reads_elsewhere"] = push.error()
        told["after_that"] = push.error()
        for method in experts:
            method.unquantized_backend = UnquantizedMoeBackend.FLASHINFER_CUTLASS
        push.load()
        told["flashinfer_is_probed"] = push.loader.finish()
    told |= {name: Pushed(family, folder / name).found() for name, family in DENSE.items()}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
