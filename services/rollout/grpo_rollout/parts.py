"""Build the parts of one rollout server. The routes and the guard call them."""

import logging
import time
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.engine.protocol import EngineClient
from vllm.inputs.engine import tokens_input
from vllm.renderers.chat_utils import load_chat_template

from grpo_proto.checkpoint_files import checkpoint_folder
from grpo_proto.messages.rollout import Prompt, RolloutRequest, Sampling

from . import metrics
from .adapter_check import BaseDigest
from .adapters import Adapters
from .engine import Engine
from .health import InfoCard
from .images import Images
from .logprobs import Logprobs
from .manifest_check import ModelTensors, model_tensors
from .pushes import Pushes
from .rollouts import Rollouts, sampling_params
from .sessions.build import SessionParts, VllmServing, build_sessions
from .workarounds import bound_logprobs

logger = logging.getLogger("vllm.grpo_rollout.parts")


@dataclass(frozen=True)
class Parts:
    engine: Engine
    pushes: Pushes
    rollouts: Rollouts
    logprobs: Logprobs
    info: InfoCard
    started_s: float
    """Monotonic time at which the server was ready to answer."""
    sessions: SessionParts


async def build_parts(client: EngineClient, args: Namespace, *, models: Any, serving: VllmServing) -> Parts:
    """Build everything that our routes need, on top of a running engine.

    `models` is vLLM's `OpenAIServingModels`.
    """
    engine = Engine(client)
    engine.start()
    bound_logprobs(engine.client.model_config)
    await engine.set_version(0)
    await warm_up(engine)
    world_size = engine.client.vllm_config.parallel_config.world_size
    lora_config = engine.client.vllm_config.lora_config
    adapters = None
    if lora_config is not None:
        adapters = Adapters(engine, lora_config, BaseDigest(lambda: served_folder(engine)), models)
    pushes = Pushes(engine, world_size=world_size, tensors=_model_tensors(engine), adapters=adapters)
    metrics.set_weight_state(pushes.weights.state, pushes.weights.version)
    tokenizer = engine.client.get_tokenizer()
    chat_template = load_chat_template(args.chat_template)
    max_model_len = engine.client.model_config.max_model_len
    images = Images(engine)
    rollouts = Rollouts(
        engine,
        pushes,
        images,
        tokenizer=tokenizer,
        chat_template=chat_template,
        template_kwargs=args.default_chat_template_kwargs or {},
        max_model_len=max_model_len,
    )
    return Parts(
        engine=engine,
        pushes=pushes,
        rollouts=rollouts,
        sessions=build_sessions(engine, pushes, rollouts, serving, args),
        logprobs=Logprobs(
            engine,
            pushes,
            images,
            max_model_len=max_model_len,
            max_tokens=args.max_scored_tokens,
            max_tokens_in_flight=args.max_scored_tokens_in_flight,
        ),
        info=InfoCard(
            engine,
            tokenizer=tokenizer,
            chat_template=chat_template,
            server_id=pushes.server_id,
            max_images=images.max_images,
            workers=await engine.workers("device"),
        ),
        started_s=time.monotonic(),
    )


async def warm_up(engine: Engine) -> None:
    """Sample two small requests before the server reports ready.

    vLLM compiles its sampler at the first request, and again at another batch size; on a CPU that takes ten seconds.
    """
    started_s = time.monotonic()
    for n in (1, 3):
        request = RolloutRequest(
            request_id="warm-up", prompts=[Prompt(token_ids=[0], seed=0)], n=n, sampling=Sampling(max_tokens=2)
        )
        params = sampling_params(request, 0, room=2)
        async for _ in engine.client.generate(tokens_input([0]), params, f"warm-up-{n}"):
            pass
    logger.info("warmed up in %.1f s", time.monotonic() - started_s)


def served_folder(engine: Engine) -> Path:
    """Return the folder of the checkpoint that vLLM has loaded. Raises FileNotFoundError when it is not here."""
    model, loading = engine.client.model_config, engine.client.vllm_config.load_config
    return checkpoint_folder(model.model, revision=model.revision, cache_folder=loading.download_dir)


def _model_tensors(engine: Engine) -> ModelTensors | str:
    """List the tensors of the checkpoint; or say why they cannot be listed, which refuses full pushes."""
    config = engine.client.model_config
    try:
        return model_tensors(config.hf_config, config.hf_text_config, config.dtype, served_folder(engine))
    except Exception as error:
        logger.exception("cannot list the tensors of %s: pushes of all weights will be refused", config.model)
        return f"{type(error).__name__}: {error}"
