"""A push that breaks off in the middle of a layer leaves the model as it was, for the next push."""

import json
from pathlib import Path

import pytest

from tests.warm_python import warm_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.xdist_group("engines")]


def test_after_a_layer_that_found_no_memory_the_next_push_is_whole(tmp_path: Path):
    """Of a layer that came in full vLLM would keep the meta device's parameters, which load no more and say nothing."""
    done = warm_vllm.run("-m", "tests.rollout.push_without_memory", folder=tmp_path, timeout_s=120.0)
    assert done.returncode == 0, done.stderr
    broken, whole = json.loads(done.stdout.splitlines()[-1])
    assert "no memory for a layer" in broken["error"]
    assert broken["holds"] == {"embed.weight": [1.0], "proj.weight": [1.0]}
    assert whole == {"error": None, "holds": {"embed.weight": [3.0], "proj.weight": [3.0]}}
