"""The committed OpenAPI document is that of the code."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.vllm

COMMITTED = Path(__file__).parents[2] / "services/rollout/openapi.json"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """Made in a process of its own: it imports vLLM, whose dependencies warn about each other."""
    command = [sys.executable, "-m", "grpo_rollout.describe"]
    return json.loads(subprocess.run(command, capture_output=True, check=True, timeout=120).stdout)


def test_the_committed_document_has_not_drifted(document: dict[str, Any]):
    renew = "python -m grpo_rollout.describe > services/rollout/openapi.json"
    assert json.loads(COMMITTED.read_text()) == document, f"renew it: {renew}"


def test_every_refusal_is_described(document: dict[str, Any]):
    assert {"409", "422", "429", "503", "504"} <= document["paths"]["/v1/rollouts"]["post"]["responses"].keys()
    for operations in document["paths"].values():
        for operation in operations.values():
            schema = operation["responses"].get("422", {}).get("content", {}).get("application/json", {}).get("schema")
            assert schema in (None, {"$ref": "#/components/schemas/ErrorBody"})
