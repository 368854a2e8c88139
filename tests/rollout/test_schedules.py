"""Which weights computed every token, under vLLM's real schedulers, random traffic and pushes at random moments."""

import json
from typing import Any

import pytest

from tests.processes import ROLLOUT_ENVIRONMENT
from tests.warm_python import warm_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300), pytest.mark.xdist_group("engines")]
NUM_SEEDS = 10


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("schedules")
    done = warm_vllm.run(
        "-m", "tests.rollout.schedules", NUM_SEEDS, folder=folder, timeout_s=240.0, environment=ROLLOUT_ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    result: dict[str, Any] = json.loads(line)
    return result


@pytest.mark.parametrize("scheduler", ["Scheduler", "AsyncScheduler"])
def test_every_token_is_of_the_version_that_it_is_labelled_with(found: dict[str, Any], scheduler: str):
    """And on a context that says so: of that version alone where all tokens before it are, of none before a push that
    recomputes. Nothing is lost, sampled twice, or computed on the KV of other tokens."""
    assert [seed["problems"] for seed in found[scheduler]] == [[]] * NUM_SEEDS
    assert all(seed["pushes"] > 10 and seed["tokens"] > 500 for seed in found[scheduler])


@pytest.mark.parametrize("part", ["restart_prompts", "separate", "evict_blocks"])
def test_without_a_part_of_keeping_sequences_a_token_is_wrong(found: dict[str, Any], part: str):
    assert "as all before it: computed on" in " ".join(found["without"][part])
