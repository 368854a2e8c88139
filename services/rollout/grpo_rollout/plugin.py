"""The two entry points by which vLLM finds us (`pyproject.toml`): one for every process, one for the API server."""

from argparse import Namespace

from fastapi import FastAPI
from starlette.datastructures import State
from vllm.engine.protocol import EngineClient
from vllm.tasks import SupportedTask

from grpo_proto.api_token import server_tokens

from .guard import Guard
from .lifeline import die_with_parent
from .options import DEFAULT_HEARTBEAT_TIMEOUT_S, DEFAULT_MAX_WAITING
from .parts import Service, build_service
from .routes import make_router
from .short_spin import spin_briefly
from .tile_unit import request_tile_unit


def register() -> None:
    """`vllm.general_plugins`: vLLM calls this in the API server, the engine process and every worker."""
    die_with_parent()
    request_tile_unit()
    spin_briefly()


class RolloutEndpoints:
    """`vllm.endpoint_plugins`: our routes on vLLM's application, and the guard around all of it."""

    name = "grpo_rollout"
    required_tasks: tuple[SupportedTask, ...] | None = ("generate",)

    def __init__(self) -> None:
        self._service: Service | None = None

    def attach_router(self, app: FastAPI) -> None:
        args = app.state.args
        app.include_router(
            make_router(
                self._require_service,
                heartbeat_timeout_s=getattr(args, "heartbeat_timeout_s", DEFAULT_HEARTBEAT_TIMEOUT_S),
            )
        )
        app.add_middleware(
            Guard,
            tokens=server_tokens(),
            pushes=lambda: self._service.pushes if self._service is not None else None,
            max_waiting=getattr(args, "max_waiting_requests", DEFAULT_MAX_WAITING),
        )

    async def init_state(self, engine_client: EngineClient | None, state: State, args: Namespace) -> None:
        if engine_client is None:
            raise RuntimeError("rollouts need an engine; this is a render server")
        self._service = await build_service(engine_client, args)

    def _require_service(self) -> Service:
        if self._service is None:
            raise RuntimeError("vLLM serves before it has called init_state")
        return self._service
