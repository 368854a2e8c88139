"""vLLM's two entry points into this package (`pyproject.toml`): one for every process, one for the API server."""

from argparse import Namespace

from fastapi import FastAPI
from starlette.datastructures import State
from vllm.engine.protocol import EngineClient
from vllm.tasks import SupportedTask

from grpo_proto.api_token import server_tokens

from .guard import Guard
from .kept_sequences import add_keep_call
from .options import DEFAULT_HEARTBEAT_TIMEOUT_S, DEFAULT_MAX_WAITING
from .parts import Parts, build_parts
from .regex_grammar import compile_regexes_within_limits
from .routes import make_router
from .sessions.build import VllmServing
from .workarounds import die_with_parent, mend_cpu_adapters, request_amx_tiles, spin_briefly


def register() -> None:
    """Apply the workarounds to this process, and add what is ours to the engine (`vllm.general_plugins`).

    vLLM calls this in the API server, the engine process and every worker.
    """
    die_with_parent()
    request_amx_tiles()
    spin_briefly()
    mend_cpu_adapters()
    add_keep_call()
    compile_regexes_within_limits()


class RolloutEndpoints:
    """Add our routes to vLLM's application, and the guard around all of it (`vllm.endpoint_plugins`)."""

    name = "grpo_rollout"
    required_tasks: tuple[SupportedTask, ...] | None = ("generate",)

    def __init__(self) -> None:
        self._parts: Parts | None = None

    def attach_router(self, app: FastAPI) -> None:
        args = app.state.args
        app.include_router(
            make_router(
                self._require_parts,
                heartbeat_timeout_s=getattr(args, "heartbeat_timeout_s", DEFAULT_HEARTBEAT_TIMEOUT_S),
            )
        )
        app.add_middleware(
            Guard,
            tokens=server_tokens(),
            pushes=lambda: self._parts.pushes if self._parts is not None else None,
            max_waiting=getattr(args, "max_waiting_requests", DEFAULT_MAX_WAITING),
        )

    async def init_state(self, engine_client: EngineClient | None, state: State, args: Namespace) -> None:
        if engine_client is None:
            raise RuntimeError("rollouts need an engine, and this is a render server")
        serving = VllmServing(
            chat=state.openai_serving_chat,
            messages=state.anthropic_serving_messages,
            responses=state.openai_serving_responses,
        )
        self._parts = await build_parts(engine_client, args, models=state.openai_serving_models, serving=serving)

    def _require_parts(self) -> Parts:
        if self._parts is None:
            raise RuntimeError("vLLM serves requests before it has called init_state")
        return self._parts
