"""A session of a real server, opened over HTTP, and what tests ask of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx

from tests.rollout.conftest import Server
from tests.waiting import PATIENCE_S


class Opened:
    """An open session, and its routes."""

    def __init__(self, http: httpx.AsyncClient, answer: dict[str, Any]):
        self.http, self.answer = http, answer
        self.path = f"/v1/sessions/{answer['session_id']}"

    async def control(
        self, route: str, body: Any = None, *, key: str = "control_key", **headers: str
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.answer[key]}"} | headers
        if route == "trajectory":
            return await self.http.get(f"{self.path}/trajectory", headers=headers)
        return await self.http.post(f"{self.path}/{route}", json=body, headers=headers)

    async def generate(self, **body: Any) -> dict[str, Any]:
        answer = await self.control("generate", body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def chat(self, *messages: Any, key: str = "api_key", retry: int = 0, **body: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.answer[key]}", "x-stainless-retry-count": str(retry)}
        url = f"{self.answer['openai_base_url']}/chat/completions"
        return await self.http.post(url, json={"model": "mine", "messages": messages} | body, headers=headers)

    async def trajectory(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.control("trajectory")).json()
        turns = [turn for segment in found["segments"] for turn in segment["turns"]]
        sampled = sum(turn["end"] - turn["start"] for turn in turns)
        assert found["stats"]["sampled"] == sampled == sum(len(segment["logprobs"]) for segment in found["segments"])
        for turn in turns:
            assert sum(count for _, count in turn["versions"]) == turn["end"] - turn["start"]
        return found

    async def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until what the server says of the session `holds`: `turns` counts a turn from its beginning."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            stats: dict[str, Any] = (await self.trajectory())["stats"]
            if holds(stats):
                return stats
            assert time.monotonic() < deadline_s, stats
            await asyncio.sleep(0.05)


@asynccontextmanager
async def opened(server: Server, **body: Any) -> AsyncIterator[Opened]:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=120.0) as http:
        body = {"seed": 1, "sampling": {"max_tokens": 12}} | body
        answer = await http.post("/v1/sessions", json=body)
        assert answer.status_code == 200, answer.text
        session = Opened(http, answer.json())
        try:
            yield session
        finally:
            headers = {"Authorization": f"Bearer {session.answer['control_key']}"}
            with suppress(httpx.TransportError):
                await http.delete(session.path, headers=headers)
