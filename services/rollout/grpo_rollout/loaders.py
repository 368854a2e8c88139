"""What a worker does with the tensors of a push, one loader for each kind that a trainer may push."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from grpo_proto.messages.weights import BeginRequest, Kind

from . import family_cures
from .adapter_loader import AdapterLoader
from .layer_probe import LayerProbe
from .load_in_place import load_in_place
from .reload import FrozenParts, copy_pending_views, forget_loaded, incomplete_layers, unloaded_layers


class Loader(Protocol):
    """Takes the tensors of one push after the other into vLLM's `worker`.

    `waits`: sampling is paused, so the worker may wait for buckets; otherwise it looks whether they have arrived.
    """

    waits: bool

    def __init__(self, worker: Any): ...

    @property
    def begin(self) -> Callable[..., None]:
        """A push begins, with its request; the one before has ended in `finish` or `drop`. Options are of the kind."""

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]], buffer: torch.Tensor) -> None:
        """Take in the tensors of one bucket, which are views of `buffer`; it is reused afterwards."""

    def finish(self) -> bool:
        """Put what was loaded to work, after the last bucket. Raises RuntimeError when something is missing or wrong.

        Returns whether a probe of every layer has shown that it serves what was loaded.
        """

    def drop(self) -> None:
        """Give up the push under way, if there is one."""


class FullLoader:
    """Every parameter of the model, through vLLM's layerwise reload."""

    waits = True

    def __init__(self, worker: Any):
        self.worker = worker
        self._open = False
        self._probe = LayerProbe(self.model)
        self._frozen = FrozenParts(self.model, pushed=(), absent=())
        self._packed_heads: dict[torch.nn.Module, object] = {}
        # Silence vLLM's warning, at every push, about layers with nothing to load; `unloaded_layers` finds the others.
        reload_logger = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
        reload_logger.addFilter(lambda record: "Failed to load weights" not in str(record.msg))

    @property
    def model(self) -> torch.nn.Module:
        # The runner wraps its own for CUDA graphs, and a wrapper names every parameter otherwise.
        model: torch.nn.Module = self.worker.get_model()
        return model

    def begin(self, request: BeginRequest, *, unknown: Sequence[str]) -> None:
        """`unknown`: tensors of the checkpoint that no trainer of text has."""
        pushed = [spec.name for spec in request.manifest.tensors]
        with set_current_vllm_config(self.worker.vllm_config), torch.no_grad():
            self._open, self._frozen = True, FrozenParts(self.model, pushed=pushed, absent=[*request.absent, *unknown])
            self._packed_heads = family_cures.packed_heads(self.model)
            family_cures.pack_experts_anew(self.model)
            initialize_layerwise_reload(self.model)
            family_cures.load_sinks_in_place(self.model)
            load_in_place(self.model)
            self._probe.watch()

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]], buffer: torch.Tensor) -> None:
        with set_current_vllm_config(self.worker.vllm_config), torch.no_grad(), disable_mtp_completeness_check():
            self.model.load_weights(family_cures.one_by_one(self.model, tensors))
            # Copy before the buffer is reused: a fused layer keeps views of its parts until the last part has arrived.
            copy_pending_views(self.model, buffer)

    def finish(self) -> bool:
        missing = [name for name in unloaded_layers(self.model) if name not in self._frozen]
        incomplete = incomplete_layers(self.model)
        self._finalize()
        if missing:
            raise RuntimeError(f"nothing was loaded into {', '.join(missing[:5])} ({len(missing)} layers)")
        if incomplete:
            raise RuntimeError(f"not all weights of {', '.join(incomplete[:5])} arrived ({len(incomplete)} layers)")
        with set_current_vllm_config(self.worker.vllm_config), torch.no_grad():
            if (difference := self._probe.first_difference()) is not None:
                raise RuntimeError(f"a layer does not serve what was pushed: {difference}")
        self.worker.model_runner.reset_lora_state()
        return self._probe.covers_all

    def drop(self) -> None:
        if self._open:
            forget_loaded(self.model)
            self._finalize()

    def _finalize(self) -> None:
        """Close the layerwise reload, complete or not: restarting an open reload would lose half-loaded layers."""
        with set_current_vllm_config(self.worker.vllm_config), torch.no_grad():
            finalize_layerwise_reload(self.model, self.worker.model_config)
            family_cures.pack_heads_anew(self._packed_heads)
        self._probe.stop_watching()
        self._open = False


LOADERS: dict[Kind, type[Loader]] = {"full": FullLoader, "lora": AdapterLoader}
