"""Take an adapter into vLLM inside every worker, from the tensors of a push and without a disk.

vLLM's `LRUCacheWorkerLoRAManager` reads an adapter from a folder. `AdapterLoader` replaces that reading on the worker's
own manager, and only for the versions that were pushed: it hands over the adapter that it built from the push. The
alternative, a folder in tmpfs, would keep vLLM's reading as it is. It was not chosen: /dev/shm has 64 MB in a container
by default, and workers of one machine would have to agree about one folder, because a request carries one path for all.
What vLLM checks while it reads is checked before the push, and more strictly (`adapter_check.py`).

vLLM loads an adapter again, inside a step, when a request needs it and its cache has evicted it; a failure there ends
the engine. So an adapter stays here until `unload`, when no request can get it any more: loading again is a lookup.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from vllm.lora.layers import LogitsProcessorWithLoRA
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.request import LoRARequest
from vllm.lora.utils import parse_fine_tuned_lora_name
from vllm.model_executor.layers.linear import LinearBase, QKVParallelLinear
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from grpo_proto.messages.weights import BeginRequest

Sizes = tuple[int, int]
"""Columns of A and rows of B, of the whole layer: a worker of a tensor-parallel engine holds a part of it."""


class AdapterLoader:
    """The tensors of one adapter, cloned out of the buckets and added to vLLM under the name of their version."""

    waits = False

    def __init__(self, worker: Any):
        self.worker = worker
        self._models: dict[int, LoRAModel] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        self._request: LoRARequest | None = None
        self._peft_config: dict[str, Any] = {}
        self._replaced_reading = False

    @property
    def manager(self) -> Any:
        """vLLM's `LRUCacheWorkerLoRAManager`; it exists only with --enable-lora."""
        return self.worker.model_runner.lora_manager

    def begin(self, request: BeginRequest, *, name: str, int_id: int, path: str) -> None:
        self._request = LoRARequest(lora_name=name, lora_int_id=int_id, lora_path=path)
        self._peft_config = request.peft_config or {}
        if not self._replaced_reading:
            self._read_folder = self.manager._load_adapter
            self.manager._load_adapter = self._load_adapter
            self._replaced_reading = True

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]], buffer: torch.Tensor) -> None:
        """Copy: the buffer is reused, and an adapter that kept views of it would change with the next bucket.

        Into the host's memory, where vLLM builds adapters: a GPU's may be all in use, and sampling goes on.
        """
        self._tensors.update((name, tensor.to("cpu", copy=True)) for name, tensor in tensors)

    def finish(self) -> bool:
        """Add the adapter to vLLM, into a slot of its own: no running request refers to it yet.

        Returns False: adapters are not probed, the trainer's canary compares them.
        """
        if self._request is None:
            raise RuntimeError("no adapter is being loaded")
        request, tensors = self._request, self._tensors
        self._request, self._tensors = None, {}
        with torch.no_grad():
            self._models[request.lora_int_id] = self._build(request.lora_int_id, tensors)
            self.worker.add_lora(request)
        return False

    def drop(self) -> None:
        self._request, self._tensors = None, {}

    def unload(self, int_ids: Sequence[int]) -> int:
        """Unload these adapters. Return how many stay. An adapter that never arrived here is passed over."""
        for int_id in int_ids:
            if self._models.pop(int_id, None) is not None:
                self.worker.remove_lora(int_id)
        return len(self._models)

    def sizes(self, tensor_names: Sequence[str]) -> dict[str, Sizes | None]:
        """Return the sizes of the layer that each tensor belongs to, without the tensors that no layer takes.

        None where the sizes are unknown: experts. Under pipeline parallelism a worker has a part of the layers.
        """
        known = layer_sizes(self.manager._adapter_manager)
        skipped = getattr(self.manager._adapter_manager.model, "lora_skip_prefixes", None) or []
        found: dict[str, Sizes | None] = {}
        for name in tensor_names:
            module, _ = parse_fine_tuned_lora_name(name, self._mapper())
            if module in known and not LoRAModel._should_skip_module(name, skipped):
                found[name] = known[module]
        return found

    def _build(self, int_id: int, tensors: dict[str, torch.Tensor]) -> LoRAModel:
        manager = self.manager
        helper = PEFTHelper.from_dict(
            self._peft_config | {"vllm_max_position_embeddings": manager.max_position_embeddings}
        )
        helper.validate_legal(manager.lora_config)
        return LoRAModel.from_lora_tensors(
            int_id,
            tensors,
            helper,
            device="cpu",
            dtype=manager.lora_config.lora_dtype,
            model_vocab_size=manager.vocab_size,
            weights_mapper=self._mapper(),
        )

    def _mapper(self) -> Any:
        """Return the model's mapping from Hugging Face's module names to vLLM's; None when they are equal."""
        mapper = getattr(self.manager._adapter_manager.model, "hf_to_vllm_mapper", None)
        return mapper.get_rename_mapper() if mapper is not None else None

    def _load_adapter(self, request: LoRARequest) -> LoRAModel:
        """Stand in for the manager's own method. Adding a model twice is safe: vLLM merges and scales it once."""
        known = self._models.get(request.lora_int_id)
        return known if known is not None else self._read_folder(request)


def layer_sizes(adapter_manager: Any) -> dict[str, Sizes | None]:
    """Map every module that takes an adapter to its sizes. Of a packed layer its parts are listed, as q, k and v."""
    sizes: dict[str, Sizes | None] = {}
    for name, layer in adapter_manager.modules.items():
        base = layer.base_layer
        parts = adapter_manager.packed_modules.get(name)
        if parts:
            outputs = _output_sizes(base)
            if outputs is None or len(outputs) != len(parts):
                sizes |= dict.fromkeys(parts)
            else:
                sizes |= {part: (base.input_size, rows) for part, rows in zip(parts, outputs, strict=True)}
        elif isinstance(base, LinearBase):
            sizes[name] = (base.input_size, base.output_size)
        elif isinstance(base, VocabParallelEmbedding):
            sizes[name] = (base.org_vocab_size, base.embedding_dim)
        elif isinstance(layer, LogitsProcessorWithLoRA):  # the output head
            sizes[name] = (layer.hidden_size, layer.vocab_size)
        else:
            # Experts in one tensor: PEFT names gate and up as the module's base layer.
            sizes |= {name: None, f"{name}.base_layer": None}
    return sizes


def _output_sizes(base: torch.nn.Module) -> Sequence[int] | None:
    """Return the rows of each part of a packed layer, counting heads that tensor parallelism repeats once."""
    if isinstance(base, QKVParallelLinear):
        num_kv_heads = base.total_num_kv_heads
        return (
            base.total_num_heads * base.head_size,
            num_kv_heads * base.head_size,
            num_kv_heads * base.v_head_size,
        )
    return getattr(base, "output_sizes", None)
