"""Built-in rewards in worker processes, with samples that are hard on them."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.reward.machinery import Machinery

from grpo_proto import RewardSpec
from grpo_reward.executors.base import Chunk

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module")
async def machinery() -> AsyncIterator[Machinery]:
    machinery = Machinery(None)
    await machinery.executor.start()
    yield machinery
    await machinery.executor.stop()


async def test_an_integral_that_takes_for_ever_scores_0_in_time_and_costs_no_worker(machinery):
    # An expression that the guard of `accuracy` does not know, as it stands for all of its kind.
    solution = {"solution": "$5$"}
    texts = [f"<answer>${text}$</answer>" for text in ("5", "\\int_0^1 \\sin(x^3) e^{x^2} dx", "5", "6")]
    samples = [{"completion": text, "columns": solution} for text in texts]
    chunk = Chunk([RewardSpec(name="accuracy")], samples, None, 20.0)
    await machinery.executor.score(chunk)
    assert [score.score for score in chunk.scores] == [1.0, 0.0, 1.0, 0.0]
    assert (chunk.scores[1].log, machinery.restarts) == ({"too_costly": True}, {})


async def test_a_pattern_with_many_brackets_fills_no_log(machinery, capfd):
    pattern = "[[a]" * 500
    assert await machinery.statuses("a", reward="regex", pattern=pattern) == ["ok"]
    assert "nested set" not in capfd.readouterr().err
