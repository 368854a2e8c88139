"""The application over an executor in this process, for tests of its routes."""

from pathlib import Path
from typing import Any

import httpx
from tests.reward.gated import GatedExecutor

from grpo_proto import ErrorBody
from grpo_reward.app import create_app
from grpo_reward.config import Settings
from grpo_reward.metrics import Metrics
from grpo_reward.scoring import Scoring

TOKEN = "a secret"
JSON = {"Content-Type": "application/json"}
ROUTES = {"/livez", "/readyz", "/info", "/metrics", "/v1/rewards", "/v1/score"}


class Executor(GatedExecutor):
    """Can be slow, unavailable or dead."""

    workers = 2
    open = True

    def __init__(self) -> None:
        super().__init__([Path(__file__).parent / "plugins/misbehaving.py"])


class Server:
    def __init__(self, *tokens: str, **settings: object):
        self.executor = Executor()
        self.metrics = Metrics()
        self.settings = Settings(**settings)
        self.scoring = Scoring(self.executor, self.metrics)
        self.app = create_app(self.settings, self.executor, self.metrics, self.scoring, tokens=tokens)
        self.transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(base_url="http://localhost", transport=self.transport)

    async def score(self, rewards: list, samples: list, **more: object) -> httpx.Response:
        return await self.post("/v1/score", {"rewards": rewards, "samples": samples, **more})

    async def post(self, path: str, body: object, **more: Any) -> httpx.Response:
        return await self.http.post(path, json=body, **more)

    def metric(self, name: str) -> float:
        lines = self.metrics.text().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def error_of(response: httpx.Response, status: int = 422) -> tuple[str, str, str]:
    """Type, message and hint, after looking at the shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = ErrorBody.model_validate_json(response.content).error
    assert set(response.json()) == {"error"}
    assert set(response.json()["error"]) == {"type", "message", "hint", "retryable"}
    assert error.retryable == (status in (408, 429, 503))
    return error.type, error.message, error.hint or ""
