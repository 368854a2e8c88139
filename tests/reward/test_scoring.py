import gc
import weakref

import pytest
from tests.reward.gated import GatedExecutor

from grpo_proto import RewardSpec, ScoreRequest, ScoreSample
from grpo_reward.metrics import Metrics
from grpo_reward.scoring import Scoring

pytestmark = pytest.mark.usefixtures("fresh_modules")


async def test_a_request_that_met_its_deadline_gives_its_memory_back_without_the_collector():
    executor = GatedExecutor()
    executor.gate.clear()
    samples = [ScoreSample(completion="") for _ in range(3)]
    request = ScoreRequest(rewards=[RewardSpec(name="format")], samples=samples, deadline_s=0.01)
    kept = weakref.ref(request)
    gc.collect()
    gc.disable()
    try:
        response = await Scoring(executor, Metrics()).score(request)
        executor.chunks.clear()
        del request
        assert kept() is None
    finally:
        gc.enable()
    assert [result.rewards["format"].status for result in response.results] == ["timeout"] * 3
