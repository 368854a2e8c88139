"""Probe each layer of the model: does it compute with the weights that were loaded into it?

vLLM packs weights into the layouts of its kernels after loading. Before that, a layer's plain weights say what it must
compute; after the push, the layer is asked. A layer that went on with an older packing, or that got plain weights in
packed storage, gives another answer, and the push fails by its name.

A linear layer and an output head get inputs with a single 1, at columns that change with each push: each output is one
weight, without any rounding, so that it has to be equal to the bit. Experts compute through an activation, where
kernels round differently: some, others at each push, are compared within a tolerance, and in addition the bits of one
expert are summed, which no packing changes.
"""

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from vllm import envs
from vllm.model_executor.layers.fused_moe.activation import MoEActivation, apply_moe_activation
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding

logger = logging.getLogger("vllm.grpo_rollout.layer_probe")

NUM_COLUMNS, NUM_EXPERTS = 2, 4
"""How much of a layer each push asks. A layer is packed as a whole, so a part of it tells."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.03, torch.float16: 0.005}
"""Of experts, relative to the largest output."""
INTEGERS = {4: torch.int32, 2: torch.int16, 1: torch.int8}
PROBED_BACKENDS = {UnquantizedMoeBackend.CPU, UnquantizedMoeBackend.TRITON}
"""Of experts. FlashInfer's, which vLLM prefers on Blackwell, have never run under the probe: a wrong call may end the
CUDA context, and with it the server."""


@dataclass
class Expected:
    """What a layer has to answer, from its plain weights."""

    inputs: torch.Tensor | None
    outputs: torch.Tensor | None
    """None where the layer cannot be asked by itself."""
    bit_sums: dict[str, int]
    """By parameter; of experts, of the first of `experts`."""
    experts: Sequence[int] = ()
    """Which experts were asked, by their numbers on this worker."""


class LayerProbe:
    """The probes of one push. `watch` before the first tensor is loaded, `first_difference` after the last."""

    def __init__(self, model: torch.nn.Module):
        self._names = {module: name for name, module in model.named_modules()}
        self._expected: dict[torch.nn.Module, Expected] = {}
        self._unprobed: list[str] = []
        self._watched: list[Any] = []
        self._seed = 0

    def watch(self) -> None:
        """Note the expected answers when vLLM is about to pack a layer."""
        self.stop_watching()
        self._expected.clear()
        self._unprobed.clear()
        self._seed += 1
        for module in self._names:
            method: Any = getattr(module, "quant_method", None)
            if type(method) in EXPECTED and method not in self._watched:
                method.process_weights_after_loading = self._noting(method.process_weights_after_loading)
                self._watched.append(method)

    def stop_watching(self) -> None:
        """Leave vLLM's objects as they were."""
        for method in self._watched:
            del method.process_weights_after_loading
        self._watched.clear()

    def first_difference(self) -> str | None:
        """Return the name of the first layer that serves something else than was loaded, and what shows it."""
        self._note_unpacked()
        with _whole_products():
            for module, expected in self._expected.items():
                if (difference := self._compare(module, expected)) is not None:
                    return f"{self._names[module]}: {difference}"
        return None

    def _note_unpacked(self) -> None:
        """Note the layers that vLLM has not packed anew, from the plain weights that they still have.

        A head tied to the embedding is one: whatever it was packed into before must compute with the new embedding.
        """
        for module in self._names:
            if module in self._expected or type(getattr(module, "quant_method", None)) not in EXPECTED:
                continue
            plain = getattr(module, "weight", None)
            if isinstance(plain, torch.Tensor) and plain.dim() == 2 and plain.numel() > 0:
                self._note(module)

    @property
    def covers_all(self) -> bool:
        """Whether every layer that vLLM packs has been probed."""
        return bool(self._expected) and not self._unprobed and not any(map(_packs_unknown, self._names))

    def _noting(self, process: Callable[[torch.nn.Module], None]) -> Callable[[torch.nn.Module], None]:
        def noting(module: torch.nn.Module) -> None:
            if module in self._names:
                self._note(module)
            process(module)

        return noting

    def _note(self, module: torch.nn.Module) -> None:
        generator = torch.Generator().manual_seed(self._seed)
        try:
            self._expected[module] = EXPECTED[type(module.quant_method)](module, generator)
        except Exception as error:
            self._skip(module, error)

    def _compare(self, module: torch.nn.Module, expected: Expected) -> str | None:
        if expected.inputs is not None and expected.outputs is not None:
            try:
                answer, bound = _ask(module, expected.inputs, expected.experts)
            except Exception as error:
                self._skip(module, error)
                return None
            outputs = expected.outputs.float()
            difference = (answer[:, : outputs.shape[1]].float() - outputs).abs().max().item()
            largest = outputs.abs().max().item()
            if not math.isfinite(largest):
                return "what was pushed computes NaN or Inf: look for them in the policy's weights"
            if not difference <= bound * largest:  # a NaN exceeds every bound
                return f"its outputs are off by {difference:.3g}, and the largest is {largest:.3g}"
        for name, bits in expected.bit_sums.items():
            if _bit_sum(getattr(module, name), *expected.experts[:1]) != bits:
                return f"{name} is not what was loaded"
        return None

    def _skip(self, module: torch.nn.Module, error: Exception) -> None:
        self._unprobed.append(self._names[module])
        if len(self._unprobed) == 1:
            logger.warning("%s cannot be probed, only the canary checks it: %r", self._names[module], error)


@contextmanager
def _whole_products() -> Iterator[None]:
    """Multiply float32 in float32: with VLLM_FLOAT32_MATMUL_PRECISION, a 1 times a weight is a rounded weight."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _rounds_products() -> bool:
    """Whether a GPU rounds float32 to TF32 whatever torch says: by NVIDIA's own switch, or in vLLM's Triton kernels."""
    return os.environ.get("NVIDIA_TF32_OVERRIDE") == "1" or bool(envs.VLLM_BATCH_INVARIANT)


def _packs_unknown(module: torch.nn.Module) -> bool:
    """Whether vLLM makes something of this layer's weights that no probe knows: quantized ones, latent attention."""
    method = getattr(module, "quant_method", None)
    has_weights = any(True for _ in module.parameters(recurse=False))
    return hasattr(module, "W_UV") or (
        has_weights and isinstance(method, QuantizeMethodBase) and type(method) not in EXPECTED
    )


def _of_linear(module: torch.nn.Module, generator: torch.Generator) -> Expected:
    weight = module.weight
    if weight.dtype == torch.float32 and weight.is_cuda and _rounds_products():
        raise ValueError("its products are rounded to TF32")
    if weight.dim() != 2:  # a short convolution of linear attention
        return Expected(None, None, {"weight": _bit_sum(weight)})
    columns = torch.randint(weight.shape[1], (NUM_COLUMNS,), generator=generator).to(weight.device)
    inputs = torch.nn.functional.one_hot(columns, weight.shape[1]).to(weight.dtype)
    # The rows that fill up a vocabulary hold anything.
    num_rows = module.shard_indices.num_org_elements if isinstance(module, VocabParallelEmbedding) else len(weight)
    return Expected(inputs, weight[:num_rows, columns].T.contiguous(), {})


def _of_experts(module: torch.nn.Module, generator: torch.Generator) -> Expected:
    if module.quant_method.moe.moe_parallel_config.use_all2all_kernels:
        raise ValueError("its experts are spread over engines")
    if (backend := module.quant_method.unquantized_backend) not in PROBED_BACKENDS:
        raise ValueError(f"its experts compute with {backend.value}, and --moe-backend triton can be probed")
    chosen = torch.randperm(len(module.w13_weight), generator=generator)[:NUM_EXPERTS].tolist()
    inputs = torch.randn(len(chosen), module.w13_weight.shape[2], generator=generator).to(module.w13_weight)
    hidden = _each(module.w13_weight, chosen, inputs)
    if (bias := getattr(module, "w13_bias", None)) is not None:
        hidden = hidden + bias[chosen]
    active = _activated(module.activation, hidden)
    outputs = _each(module.w2_weight, chosen, active)
    if (bias := getattr(module, "w2_bias", None)) is not None:
        outputs = outputs + bias[chosen]
    summed = chosen[0]
    bit_sums = {name: _bit_sum(getattr(module, name), summed) for name in ("w13_weight", "w2_weight")}
    return Expected(inputs, outputs, bit_sums, chosen)


def _each(weight: torch.Tensor, experts: Sequence[int], inputs: torch.Tensor) -> torch.Tensor:
    """Multiply each input by its expert's matrix, where it lies: four experts of eight are half of a layer's memory."""
    return torch.stack([weight[expert] @ vector for expert, vector in zip(experts, inputs, strict=True)])


def _activated(activation: MoEActivation, hidden: torch.Tensor) -> torch.Tensor:
    if activation == MoEActivation.SWIGLUOAI:  # of which vLLM has no kernel for a CPU by itself
        gate, up = hidden[:, ::2].clamp(max=7.0), hidden[:, 1::2].clamp(-7.0, 7.0)
        return (up + 1) * gate * torch.sigmoid(1.702 * gate)
    active = hidden.new_empty(len(hidden), hidden.shape[1] // 2 if activation.is_gated else hidden.shape[1])
    apply_moe_activation(activation, active, hidden)
    return active


def _ask(module: torch.nn.Module, inputs: torch.Tensor, experts: Sequence[int]) -> tuple[torch.Tensor, float]:
    """Return the layer's outputs as it serves them, and how far they may be off."""
    if isinstance(module.quant_method, UnquantizedFusedMoEMethod):
        return _ask_experts(module, inputs, experts), TOLERANCE[inputs.dtype]
    return module.quant_method.apply(module, inputs), 0.0


def _ask_experts(module: torch.nn.Module, inputs: torch.Tensor, experts: Sequence[int]) -> torch.Tensor:
    """One token for each of these experts of this worker, which it alone answers."""
    numbers = torch.tensor(experts, device=inputs.device)
    if module.expert_map is not None:  # from all experts to this worker's
        numbers = torch.nonzero(module.expert_map >= 0)[:, 0][numbers]
    return module.quant_method.apply(
        layer=module,
        x=inputs.clone(),
        topk_weights=torch.ones(len(inputs), 1, dtype=torch.float32, device=inputs.device),
        topk_ids=numbers[:, None].to(torch.int32),
        shared_experts=None,
        shared_experts_input=None,
    )


def _bit_sum(tensor: torch.Tensor, expert: int | None = None) -> int:
    """Sum the bits of all numbers as integers: the same for every order of the numbers, and for more zeros."""
    tensor = tensor if expert is None else tensor[expert]
    numbers = tensor.detach().reshape(-1).view(INTEGERS[tensor.element_size()])
    # In sixteen parts: torch copies what it sums to integers of eight bytes first.
    return int(sum(part.sum(dtype=torch.int64) for part in numbers.tensor_split(16)))


EXPECTED: dict[type, Callable[[torch.nn.Module, torch.Generator], Expected]] = {
    UnquantizedLinearMethod: _of_linear,
    UnquantizedEmbeddingMethod: _of_linear,
    UnquantizedFusedMoEMethod: _of_experts,
}
"""By vLLM's method of a layer. Quantized layers serve something else than was pushed, on purpose: not probed."""
