"""The routes of other trainers over an executor in this process, for tests."""

from pathlib import Path
from typing import Any

import httpx
from tests.reward.gated import GatedExecutor

from grpo_reward.app import create_app
from grpo_reward.config import Settings
from grpo_reward.metrics import Metrics
from grpo_reward.scoring import Scoring

TOKEN = "a secret"
RIGHT = "<think>2/4 + 1/4</think><answer>3/4</answer>"
MISBEHAVING = Path(__file__).parent / "plugins/misbehaving.py"


class Server:
    def __init__(self, token: str | None = None, **settings: Any):
        self.executor, self.metrics = GatedExecutor([MISBEHAVING]), Metrics()
        chosen = Settings(**settings).model_copy(update={"token": token})
        scoring = Scoring(self.executor, self.metrics)
        self.app = create_app(chosen, self.executor, self.metrics, scoring)
        self.transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(base_url="http://reward", transport=self.transport)

    async def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        return await self.http.post(path, json=body, **more)


def refused(response: httpx.Response, status: int = 422) -> tuple[str, str, str]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    return error["type"], error["message"], error["hint"] or ""


def gym_row(text: str, **task: Any) -> dict[str, Any]:
    """What its agent posts: the row of the dataset as it dumps it, with the response of the model server."""
    message = {
        "id": "msg_1",
        "content": [{"annotations": [], "text": text, "type": "output_text", "logprobs": None}],
        "role": "assistant",
        "status": "completed",
        "type": "message",
        "prompt_token_ids": [1, 2],
        "generation_token_ids": [3],
        "generation_log_probs": [-0.5],
    }
    return {
        "responses_create_params": {
            "background": None,
            "input": [{"content": [{"type": "input_text", "text": "What?"}], "role": "user", "type": "message"}],
            "instructions": None,
            "temperature": 1.0,
        },
        "response": {
            "id": "resp_1", "created_at": 1.5, "error": None, "incomplete_details": None, "model": "m", "usage": None,
            "object": "response", "output": [{"id": "r", "type": "reasoning", "summary": []}, message],
            "status": "completed",
        },
        "agent_ref": {"name": "simple_agent"},
        **task,
    }  # fmt: skip
