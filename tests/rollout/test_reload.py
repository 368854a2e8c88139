"""A push that breaks off in the middle of a layer leaves the model as it was, for the next push."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.vllm


def test_after_a_layer_that_found_no_memory_the_next_push_is_whole():
    """Of a layer that came in full vLLM would keep the meta device's parameters, which load no more and say nothing."""
    program = [sys.executable, "-m", "tests.rollout.push_without_memory"]
    output = subprocess.run(program, capture_output=True, text=True, timeout=120, check=True).stdout
    broken, whole = json.loads(output.splitlines()[-1])
    assert "no memory for a layer" in broken["error"]
    assert broken["holds"] == {"embed.weight": [1.0], "proj.weight": [1.0]}
    assert whole == {"error": None, "holds": {"embed.weight": [3.0], "proj.weight": [3.0]}}
