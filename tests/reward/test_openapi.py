import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from grpo_proto import ScoreRequest
from grpo_reward.adapters.peers import ADAPTERS
from grpo_reward.app import create_app
from grpo_reward.config import Settings
from grpo_reward.executors.inline import InlineExecutor
from grpo_reward.metrics import Metrics
from grpo_reward.openapi import document
from grpo_reward.scoring import Scoring

COMMITTED = Path(__file__).parents[2] / "services/reward/openapi.json"
OURS = {"/livez", "/readyz", "/info", "/metrics", "/v1/rewards", "/v1/score"}
PEERS = {"/get_reward", "/rm", "/seed_session", "/verify"}


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return document()


def test_the_committed_description_is_the_servers_own(described):
    assert described == json.loads(COMMITTED.read_text()), (
        "the routes or messages changed; run: python -m grpo_reward.openapi > services/reward/openapi.json"
    )


def test_it_describes_the_request_and_every_route(described):
    assert set(described["paths"]) == OURS | PEERS
    schemas = described["components"]["schemas"]
    assert set(schemas["ScoreRequest"]["properties"]) == set(ScoreRequest.model_fields)
    assert schemas["ScoreRequest"]["additionalProperties"] is False
    for adapter in ADAPTERS:
        assert set(schemas[adapter.body.__name__]["properties"]) == set(adapter.body.model_fields)
    for reference in (part.split('"')[0] for part in json.dumps(described).split("#/components/schemas/")[1:]):
        assert reference in schemas


def test_it_says_when_a_total_is_null(described):
    total = described["components"]["schemas"]["ScoreResult"]["properties"]["total"]
    assert {"type": "null"} in total["anyOf"]
    assert (
        "Null when no such reward exists, when a reward with a weight ended in timeout or error" in total["description"]
    )


async def test_every_example_runs(described):
    settings, executor, metrics = Settings(), InlineExecutor(), Metrics()
    app = create_app(settings, executor, metrics, Scoring(executor, metrics), tokens=())
    posted = set()
    async with httpx.AsyncClient(base_url="http://localhost", transport=httpx.ASGITransport(app)) as http:
        for path, methods in described["paths"].items():
            for method, route in methods.items():
                query = {
                    option["name"]: option["example"] for option in route.get("parameters", []) if "example" in option
                }
                body = None
                if "requestBody" in route:
                    body = route["requestBody"]["content"]["application/json"]["example"]
                    posted.add(path)
                response = await http.request(method, path, params=query, json=body)
                assert response.status_code == 200, (path, response.text)
                if path == "/v1/score":
                    assert response.json()["results"][0]["total"] == 1.1
    assert posted == PEERS | {"/v1/score"}


async def test_the_description_is_written_once():
    """Hundreds of connections may ask for it at once, and each time it would be milliseconds without other answers."""
    settings, executor, metrics = Settings(), InlineExecutor(), Metrics()
    app = create_app(settings, executor, metrics, Scoring(executor, metrics), tokens=())
    async with httpx.AsyncClient(base_url="http://localhost", transport=httpx.ASGITransport(app)) as http:
        first = await http.get("/openapi.json")
        app.openapi = None  # type: ignore[assignment, method-assign]
        again = await http.get("/openapi.json")
    assert (again.status_code, again.headers["Content-Type"]) == (200, "application/json")
    assert again.content == first.content
    assert again.json() == document()
