import json
from pathlib import Path
from typing import Any

import pytest

from grpo_proto import ScoreRequest
from grpo_reward.openapi import document

COMMITTED = Path(__file__).parents[2] / "services/reward/openapi.json"


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return document()


def test_the_committed_description_is_the_servers_own(described):
    assert described == json.loads(COMMITTED.read_text()), (
        "the routes or messages changed; run: python -m grpo_reward.openapi > services/reward/openapi.json"
    )


def test_it_describes_the_request_and_every_route(described):
    assert set(described["paths"]) == {"/livez", "/readyz", "/info", "/metrics", "/v1/rewards", "/v1/score"}
    request = described["components"]["schemas"]["ScoreRequest"]
    assert set(request["properties"]) == set(ScoreRequest.model_fields)
    assert request["additionalProperties"] is False
    for reference in (part.split('"')[0] for part in json.dumps(described).split("#/components/schemas/")[1:]):
        assert reference in described["components"]["schemas"]
