"""A program: one push that finds no memory for a layer, and another one. Prints what the model has after each.

In a process of its own, because importing vLLM warns, and warnings are errors in tests.
"""

import contextlib
import json
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from vllm.model_executor.model_loader.reload import layerwise, record_metadata_for_reloading

from grpo_proto.messages.weights import BeginRequest
from grpo_proto.transport import dtype_name, plan_manifest
from grpo_rollout import receiver


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.proj = nn.Embedding(8, 4), nn.Linear(4, 4, bias=False)
        self.requires_grad_(False)

    def load_weights(self, weights: Any) -> None:
        parameters = dict(self.named_parameters())
        for name, tensor in weights:
            parameters[name].weight_loader(parameters[name], tensor)

    def values(self) -> dict[str, list[float] | str]:
        """What each parameter holds; "meta" for one that holds nothing."""
        return {name: "meta" if p.is_meta else p.unique().tolist() for name, p in self.named_parameters()}


class Sends:
    """A group that sends one value, over and over."""

    backend = "gloo"

    def __init__(self, value: float):
        self.value = value

    def start_broadcast(self, buffer: torch.Tensor, *, timeout_s: float) -> SimpleNamespace:
        buffer.view(torch.float32).fill_(self.value)
        return SimpleNamespace(is_over_by=lambda _: True, wait=lambda: None)

    def close(self) -> None:
        pass


def main() -> None:
    receiver.set_current_vllm_config = lambda config: contextlib.nullcontext()  # type: ignore[assignment]
    receiver.disable_mtp_completeness_check = contextlib.nullcontext  # type: ignore[assignment]
    model = Model()
    record_metadata_for_reloading(model)
    for parameter in model.parameters():
        parameter.fill_(1.0)
    runner = SimpleNamespace(model=model, reset_lora_state=lambda: None)
    worker: Any = SimpleNamespace(
        vllm_config=None,
        model_config=None,
        device=torch.device("cpu"),
        model_runner=runner,
        get_model=lambda: runner.model,
    )
    worker.grpo_receiver = receiver.Receiver(worker)
    manifest = plan_manifest([(name, dtype_name(p.dtype), list(p.shape)) for name, p in model.named_parameters()], 64)

    def call(name: str, *arguments: object) -> dict[str, Any]:
        return receiver.ReceiverExtension.grpo_weights(worker, name, *arguments)  # type: ignore[arg-type]

    place = layerwise.materialize_layer

    def without_memory(layer: nn.Module, info: Any) -> None:
        if isinstance(layer, nn.Embedding):
            raise torch.OutOfMemoryError("no memory for a layer")
        place(layer, info)

    said = []
    for version, value, materialize in ((1, 2.0, without_memory), (2, 3.0, place)):
        layerwise.materialize_layer = materialize
        worker.grpo_receiver.group = Sends(value)
        worker.grpo_receiver.member = SimpleNamespace(
            watch=lambda **_: None, fail=lambda *_, **__: None, close=lambda: None
        )
        request = BeginRequest(session=1, version=version, manifest=manifest, bucket_timeout_s=5.0)
        call("begin", version, request.model_dump_json(), {"unknown": []})
        error = call("receive", version).get("error")
        layerwise.materialize_layer = place
        call("recover" if error else "finish", version)
        said.append({"error": error, "holds": model.values()})
    print(json.dumps(said))


if __name__ == "__main__":
    main()
