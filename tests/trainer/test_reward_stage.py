"""The reward stage: does the reward server fit this run?"""

import httpx
import pytest

from grpo_proto import PROTOCOL_VERSION, RewardClient, RewardDescription, RewardInfo, RewardList
from grpo_trainer.config import RewardConfig
from grpo_trainer.errors import TrainerError, UnavailableError, UsageError
from grpo_trainer.samples import PromptRow
from grpo_trainer.stages.reward import RewardStage


def a_server(*, protocol_version: int = PROTOCOL_VERSION, name: str = "countdown") -> RewardClient:
    described = RewardDescription(name=name, documentation="", params_schema={}, columns=["nums"], code_hash="0")
    said = {
        "/info": RewardInfo(version="0", protocol_version=protocol_version, rewards={name: "0"}, workers=1),
        "/v1/rewards": RewardList(rewards=[described]),
    }
    answer = httpx.MockTransport(lambda request: httpx.Response(200, text=said[request.url.path].model_dump_json()))
    return RewardClient("http://127.0.0.1:1", transport=answer)


@pytest.mark.parametrize(
    ("client", "columns", "kind", "named"),
    [
        (a_server(), {"nums": [1]}, None, ""),
        (a_server(protocol_version=PROTOCOL_VERSION + 1), {"nums": [1]}, UnavailableError, "speaks protocol"),
        (a_server(name="another"), {"nums": [1]}, UnavailableError, "has no reward countdown; it has another"),
        (a_server(), {"target": 1}, UsageError, "countdown needs the column nums; the dataset has target"),
    ],
)
async def test_a_reward_server_that_does_not_fit_is_told_apart(
    client: RewardClient, columns: dict[str, object], kind: type[TrainerError] | None, named: str
):
    async with client:
        stage = RewardStage(client, RewardConfig(reward_funcs=["countdown"]))
        rows = [PromptRow(0, [1], "prompt", columns)]
        if kind is None:
            await stage.check(rows)
        else:
            with pytest.raises(kind, match=named):
                await stage.check(rows)
