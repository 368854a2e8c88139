"""The OpenAPI document against the real server: whatever is sent, the answer is one it allows, and never a 500."""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.processes import free_port, reward_command, service

from grpo_proto import ErrorBody

pytestmark = pytest.mark.processes

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    folder = tmp_path_factory.mktemp("fuzzed")
    with service(reward_command(port, "--adapter-rewards", "format"), folder / "reward.log", port=port) as server:
        server.wait_until_live()
        yield server.url


ROUTES = [
    "/livez",
    "/readyz",
    "/info",
    "/metrics",
    "/v1/rewards",
    "/v1/score",
    "/get_reward",
    "/rm",
    "/verify",
    "/seed_session",
]


@pytest.fixture(scope="module")
def operations(url: str) -> dict[str, schemathesis.APIOperation]:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    return {operation.ok().path: operation.ok() for operation in schema.get_all_operations()}


def test_all_routes_are_tried(operations):
    assert sorted(operations) == sorted(ROUTES)


@pytest.mark.parametrize("mode", schemathesis.GenerationMode)
@pytest.mark.parametrize("route", ROUTES)
def test_every_answer_is_one_that_the_document_allows(operations, route: str, mode: schemathesis.GenerationMode):
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(case=operations[route].as_strategy(generation_mode=mode))
    def try_one(case: schemathesis.Case) -> None:
        response = case.call(timeout=60)
        case.validate_response(response, checks=CHECKS)
        if response.status_code >= 400:
            assert ErrorBody.model_validate_json(response.content).error.message

    try:
        try_one()
    except Unsatisfiable:
        # Nothing that can be wrong: a route without parameters and body.
        assert mode is schemathesis.GenerationMode.NEGATIVE
        assert not operations[route].body
