"""What a worker does with the tensors of a push, one loader for each kind that a trainer may push."""

import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from grpo_proto.messages.weights import Kind

from .adapter_loader import AdapterLoader
from .reload import copy_pending_views, forget_loaded, unloaded_layers


class Loader(Protocol):
    """Takes the tensors of one push after the other into vLLM's `worker`.

    `waits`: sampling is paused, so the worker may wait for buckets; otherwise it looks whether they have arrived.
    """

    waits: bool

    def __init__(self, worker: Any): ...

    @property
    def begin(self) -> Callable[..., None]:
        """A push begins; the one before has ended in `finish` or `drop`. Its options are of the kind that is pushed."""

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]], buffer: torch.Tensor) -> None:
        """Take in the tensors of one bucket, which are views of `buffer`; it is reused afterwards."""

    def finish(self) -> None:
        """Put what was loaded to work, after the last bucket. Raises RuntimeError when something is missing."""

    def drop(self) -> None:
        """Give up the push under way, if there is one."""


class FullLoader:
    """Every parameter of the model, through vLLM's layerwise reload."""

    waits = True

    def __init__(self, worker: Any):
        self.worker = worker
        self._open = False
        self._packed_heads: dict[torch.nn.Module, Any] = {}
        # Silence vLLM's warning, at every push, about layers with nothing to load; `unloaded_layers` finds the others.
        reload_logger = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
        reload_logger.addFilter(lambda record: "Failed to load weights" not in str(record.msg))

    @property
    def model(self) -> torch.nn.Module:
        return self.worker.model_runner.model

    def begin(self) -> None:
        with set_current_vllm_config(self.worker.vllm_config), torch.no_grad():
            self._open = True
            self._packed_heads = {
                module: module.cpu_linear
                for module in self.model.modules()
                if isinstance(module, VocabParallelEmbedding) and hasattr(module, "cpu_linear")
            }
            initialize_layerwise_reload(self.model)

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]], buffer: torch.Tensor) -> None:
        with set_current_vllm_config(self.worker.vllm_config), torch.no_grad(), disable_mtp_completeness_check():
            self.model.load_weights(tensors)
            # Copy before the buffer is reused: a fused layer keeps views of its parts until the last part has arrived.
            copy_pending_views(self.model, buffer)

    def finish(self) -> None:
        missing = unloaded_layers(self.model)
        self._finalize()
        if missing:
            raise RuntimeError(f"nothing was loaded into {', '.join(missing[:5])} ({len(missing)} layers)")
        self.worker.model_runner.reset_lora_state()

    def drop(self) -> None:
        if self._open:
            forget_loaded(self.model)
            self._finalize()

    def _finalize(self) -> None:
        """Close the layerwise reload, complete or not: restarting an open reload would lose half-loaded layers."""
        with set_current_vllm_config(self.worker.vllm_config), torch.no_grad():
            finalize_layerwise_reload(self.model, self.worker.model_config)
            # Repack the output head that vLLM keeps on a CPU. The reload repacks an untied head, but not a head tied to
            # the embedding: sampling would continue with the old head, and nothing would report it.
            for module, packed_before in self._packed_heads.items():
                if module.cpu_linear is packed_before:
                    module.quant_method.process_weights_after_loading(module)
        self._open = False


LOADERS: dict[Kind, type[Loader]] = {"full": FullLoader, "lora": AdapterLoader}
