"""Adapters as PEFT makes them, the model that each of them makes of its base, and a trainer that pushes them."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from transformers import Qwen2ForCausalLM

from grpo_proto.client.clients import RolloutClient
from grpo_proto.messages.weights import BeginRequest, Manifest, WeightState
from grpo_proto.transport import dtype_name, plan_manifest
from grpo_trainer.lora.nf4 import round_to_nf4
from tests.rollout.pushing import SMALL_BUCKET_BYTES, Trainer
from tests.tiny_model import make_model
from tests.waiting import PATIENCE_S


def make_base() -> Qwen2ForCausalLM:
    """The model that the server of adapters serves: its weights have the values of NF4, so that QLoRA trains on it."""
    model = make_model(tied=False)
    round_to_nf4(model)
    return model


class Adapter:
    """A random adapter on every linear layer. `model` is the base with the adapter, not merged."""

    def __init__(self, seed: int, *, rank: int = 8, dtype: torch.dtype = torch.float32, **config: Any):
        base = make_base()
        torch.manual_seed(seed)
        # Not PEFT's own start, in which B is zero and the adapter changes nothing.
        options = {"target_modules": "all-linear", "lora_alpha": 16, "init_lora_weights": False} | config
        self.model = get_peft_model(base, LoraConfig(r=rank, task_type="CAUSAL_LM", **options)).eval()
        tensors = get_peft_model_state_dict(self.model, save_embedding_layers=False)
        self.tensors = {name: tensor.detach().to(dtype) for name, tensor in tensors.items()}
        with tempfile.TemporaryDirectory() as folder:
            self.model.peft_config["default"].save_pretrained(folder)
            self.config: dict[str, Any] = json.loads((Path(folder) / "adapter_config.json").read_text())

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self.tensors.items())

    def manifest(self, bucket_bytes: int = SMALL_BUCKET_BYTES) -> Manifest:
        return plan_manifest([(n, dtype_name(t.dtype), t.shape) for n, t in self.tensors.items()], bucket_bytes)


class AdapterTrainer(Trainer):
    """Pushes adapters to one server."""

    def __init__(self, url: str, **options: Any):
        super().__init__(url, **options)
        self.url = url
        self.base_digest: str | None = None

    async def begin_adapter(self, adapter: Adapter, version: int, **changes: Any) -> WeightState:
        if self.base_digest is None:
            async with RolloutClient(self.url, probe_timeout_s=PATIENCE_S) as client:
                self.base_digest = (await client.info()).base_digest
        fields = {"manifest": adapter.manifest(), "peft_config": adapter.config, "base_digest": self.base_digest}
        request = BeginRequest(session=self.session, version=version, kind="lora", **(fields | changes))
        return await self.clients[0].begin(request)

    async def push_adapter(self, adapter: Adapter, version: int, **changes: Any) -> WeightState:
        """begin → all buckets → commit."""
        await self.begin_adapter(adapter, version, **changes)
        return await self.commit(version, await self.send(adapter, adapter.manifest()))  # type: ignore[arg-type]
