"""What tests of adapters ask a server, and read in its answers."""

import asyncio
from typing import Any

import httpx
import pytest

from grpo_proto.messages.errors import ServiceError
from grpo_proto.messages.rollout import RolloutResponse
from tests.rollout.conftest import Server
from tests.waiting import PATIENCE_S


def refused(status: int, type: str):
    return pytest.raises(ServiceError, check=lambda error: (error.status, error.detail.type) == (status, type))


def versions_in(answer: RolloutResponse) -> set[int]:
    return {version for group in answer.groups for c in group.completions for version, _ in c.versions}


def finish_reasons(answer: RolloutResponse) -> set[str]:
    return {completion.finish_reason for group in answer.groups for completion in group.completions}


async def models(server: Server) -> set[str]:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=PATIENCE_S) as http:
        return {model["id"] for model in (await http.get("/v1/models")).json()["data"]}


async def complete(server: Server, model: str | None, prompt: str = "a", **options: Any) -> httpx.Response:
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0.0, "logprobs": 1} | options
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60.0) as http:
        return await http.post("/v1/completions", json=body | ({"model": model} if model else {}))


async def token_versions(server: Server) -> list[list[tuple[str, int]]]:
    """The version and end of each span of two completions of `/inference/v1/generate`, eight tokens each."""
    body = {"token_ids": [5, 6], "sampling_params": {"max_tokens": 8, "n": 2, "ignore_eos": True}}
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60.0) as http:
        choices = (await http.post("/inference/v1/generate", json=body)).json()["choices"]
    return [[(span["version"], span["end"]) for span in choice["weight_versions"]] for choice in choices]


async def num_adapters(server: Server) -> float:
    """Versions in the workers' memory, once those that are not used have been unloaded."""
    await asyncio.sleep(0.5)
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=PATIENCE_S) as http:
        lines = (await http.get("/metrics")).text.splitlines()
    return float(next(line for line in lines if line.startswith("grpo_rollout_adapters ")).rsplit(" ", 1)[1])
