"""The committed OpenAPI document is that of the code."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.warm_python import warm_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.xdist_group("engines")]

COMMITTED = Path(__file__).parents[2] / "services/rollout/openapi.json"


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Made in a process of its own: it imports vLLM, whose dependencies warn about each other."""
    folder = tmp_path_factory.mktemp("document")
    made = warm_vllm.run("-m", "grpo_rollout.describe", folder=folder, timeout_s=120.0)
    assert made.returncode == 0, made.stderr
    document: dict[str, Any] = json.loads(made.stdout)
    return document


def test_the_committed_document_has_not_drifted(document: dict[str, Any]):
    renew = "python -m grpo_rollout.describe > services/rollout/openapi.json"
    assert json.loads(COMMITTED.read_text()) == document, f"renew it: {renew}"


def test_every_refusal_is_described(document: dict[str, Any]):
    assert {"409", "422", "429", "503", "504"} <= document["paths"]["/v1/rollouts"]["post"]["responses"].keys()
    for operations in document["paths"].values():
        for operation in operations.values():
            schema = operation["responses"].get("422", {}).get("content", {}).get("application/json", {}).get("schema")
            assert schema in (None, {"$ref": "#/components/schemas/ErrorBody"})
