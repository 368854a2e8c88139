"""Answer `/livez` and `/info` from memory, whatever the engine is doing."""

import time
from typing import Any

from vllm.version import __version__ as vllm_version

from grpo_proto.fingerprint import chat_template_fingerprint, tokenizer_fingerprint, vocabulary_fingerprint
from grpo_proto.messages.base import PROTOCOL_VERSION
from grpo_proto.messages.health import Health
from grpo_proto.messages.rollout import RolloutInfo
from grpo_proto.messages.sessions_info import SessionsInfo
from grpo_proto.transport import dtype_name

from . import __version__
from .engine import Engine
from .pushes import Pushes


def livez(engine: Engine, pushes: Pushes, *, heartbeat_timeout_s: float) -> Health:
    """Report whether the engine answers. While all weights load it cannot: the push's deadline is then the bound."""
    if engine.died.is_set():
        return Health(ok=False, detail=str(engine.ended()))
    now_s = time.monotonic()
    age_s = now_s - engine.last_heartbeat_s
    push = pushes.weights.push
    stands_still = push is not None and push.kind == "full" and now_s <= push.deadline_at_s
    if age_s <= heartbeat_timeout_s or stands_still:
        return Health(ok=True)
    return Health(ok=False, detail=f"the engine has not answered for {age_s:.0f} s")


class InfoCard:
    """Compute the constant part of `GET /info` once: fingerprints of a large vocabulary take a while."""

    def __init__(
        self,
        engine: Engine,
        *,
        tokenizer: Any,
        chat_template: str | None,
        server_id: str,
        max_images: int,
        workers: list[dict[str, str | None]],
    ):
        config = engine.client.model_config
        template = chat_template if chat_template is not None else getattr(tokenizer, "chat_template", None)
        self.fixed: dict[str, Any] = {
            "version": __version__,
            "protocol_version": PROTOCOL_VERSION,
            "engine": f"vllm {vllm_version}",
            "server_id": server_id,
            "model": config.model,
            "dtype": dtype_name(config.dtype),
            "head_dtype": dtype_name(config.head_dtype),
            "tokenizer_fingerprint": tokenizer_fingerprint(tokenizer.get_vocab(), eos_token_id=tokenizer.eos_token_id),
            "vocabulary_fingerprint": vocabulary_fingerprint(tokenizer.get_vocab()),
            "chat_template_fingerprint": chat_template_fingerprint(template),
            "max_model_len": config.max_model_len,
            "max_images": max_images,
            "world_size": len(workers),
            "device": "cuda" if engine.client.vllm_config.device_config.device_type == "cuda" else "cpu",
            "gpus": [worker["gpu"] for worker in workers if worker["gpu"]],
            "nccl_version": workers[0]["nccl"],
            "continues_sessions": True,
            "keeps_kv_cache": True,
        }

    def info(self, pushes: Pushes, sessions: SessionsInfo) -> RolloutInfo:
        return RolloutInfo(
            **self.fixed,
            adapters=pushes.adapters.limits if pushes.adapters is not None else None,
            base_digest=pushes.adapters.base.digest if pushes.adapters is not None else None,
            sessions=sessions,
            weights=pushes.message(),
        )
