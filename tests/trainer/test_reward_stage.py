"""The reward stage: does the reward server fit this run, and what becomes of what it could not score?"""

import httpx
import pytest

from grpo_proto import (
    PROTOCOL_VERSION,
    RewardClient,
    RewardDescription,
    RewardInfo,
    RewardList,
    RewardScore,
    ScoreRequest,
    ScoreResponse,
    ScoreResult,
)
from grpo_proto.totals import total_score
from grpo_trainer.config import RewardConfig
from grpo_trainer.errors import RunError, TrainerError, UnavailableError, UsageError
from grpo_trainer.samples import Group, PromptRow, Sample
from grpo_trainer.stages.reward import RewardStage, check_enough_scored


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


async def test_what_broke_is_scored_again_and_then_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch):
    """`late` is late twice, `broken` always; what has no weight is not asked for again."""
    monkeypatch.setattr("grpo_proto.totals.PAUSES_S", (0.0, 0.0))
    asked: list[list[str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        message = ScoreRequest.model_validate_json(request.content)
        asked.append([sample.completion for sample in message.samples])
        results = []
        for sample in message.samples:
            late = sample.completion == "late" and len(asked) < 3
            status = "timeout" if late else "error" if sample.completion == "broken" else "ok"
            right = RewardScore(score=1.0 if status == "ok" else None, status=status, detail=f"it is {status}")
            seen = RewardScore(score=None, status="error", detail="without a weight")
            found = {spec.name: right if spec.name == "right" else seen for spec in message.rewards}
            results.append(ScoreResult(id=sample.id or "", total=total_score(message.rewards, found), rewards=found))
        return httpx.Response(200, text=ScoreResponse(results=results, elapsed_s=0.0).model_dump_json())

    texts = ["fine", "late", "broken"]
    group = Group(0, PromptRow(0, [1], "p", {}), [Sample(text, [1], [-0.1], text, "stop", [(0, 1)]) for text in texts])
    config = RewardConfig(reward_funcs=["seen", "right"], reward_weights=[0.0, 1.0])
    async with RewardClient("http://127.0.0.1:1", transport=httpx.MockTransport(answer)) as client:
        await RewardStage(client, config).score([group], step=1)
    assert asked == [texts, ["late", "broken"], ["late", "broken"]]
    assert [sample.total_reward for sample in group.samples] == [1.0, 1.0, None]
    assert [sample.left_out_because(mask_truncated=False) for sample in group.samples[2:]] == ["error"]
    with pytest.raises(RunError, match=r"only 2 of 3 samples .* for instance right error: it is error"):
        check_enough_scored([group], 1.0)
