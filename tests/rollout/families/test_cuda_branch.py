"""On vLLM's CUDA branch, in CPU memory: what is pushed is loaded where it is served, counted and probed."""

import json
from typing import Any

import pytest

from tests.warm_python import warm_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300), pytest.mark.xdist_group("engines")]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("cuda")
    done = warm_vllm.run("-m", "tests.rollout.families.cuda_branch", folder=folder, timeout_s=240.0)
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    assert set(result["backends"]) == {"TRITON"}
    return result


@pytest.mark.parametrize("model", ["experts", "untied"])
def test_a_push_takes_a_tenth_of_the_largest_layer_beside_the_model(told: dict[str, Any], model: str):
    assert told[model]["in_place"] <= 0.1
    assert told[model]["as_vllm"] > 0.9, "the way of measuring shows nothing"


@pytest.mark.parametrize("model", ["experts", "untied", "tied", "fused"])
def test_after_a_push_all_is_where_it_was_as_a_fresh_load_would_have_it(told: dict[str, Any], model: str):
    assert told[model]["moved"] == told[model]["wrong"] == []
    assert told[model]["probed"] is True


def test_an_expert_that_does_not_come_fails_the_push_and_the_next_is_whole(told: dict[str, Any]):
    assert told["an_expert_is_missing"].startswith("not all weights of model.layers.1.block_sparse_moe.experts")
    assert told["after_it"] is None


def test_a_kernel_that_reads_other_memory_fails_the_push(told: dict[str, Any]):
    assert "a layer does not serve what was pushed: model.layers.0.block_sp" in told["the_kernel_reads_elsewhere"]
    assert told["after_that"] is None


def test_experts_that_flashinfer_computes_count_as_not_probed(told: dict[str, Any]):
    assert told["flashinfer_is_probed"] is False
