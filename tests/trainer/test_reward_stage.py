"""The reward stage: does the reward server fit this run, and what becomes of what it could not score?"""

import httpx
import pytest
from tests.tiny_model import make_tokenizer
from tests.trainer.made_episodes import completion

from grpo_proto import (
    PROTOCOL_VERSION,
    RewardClient,
    RewardDescription,
    RewardInfo,
    RewardList,
    RewardScore,
    RewardSpec,
    ScoreRequest,
    ScoreResponse,
    ScoreResult,
)
from grpo_proto.totals import total_score
from grpo_reward.executors.inline import InlineExecutor
from grpo_reward.metrics import Metrics
from grpo_reward.scoring import Scoring
from grpo_trainer.algorithm.sequences import Group
from grpo_trainer.config.run_config import RewardConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.errors import RunError, ServersError, TrainerError, UnavailableError, UsageError
from grpo_trainer.sampling.prompt_prefix import prefix_doubts
from grpo_trainer.sampling.reward import TOKENS_OF_REQUEST, RewardStage, check_enough_scored, in_requests
from grpo_trainer.sampling.reward_code import RewardCode


def a_server(
    *, protocol_version: int = PROTOCOL_VERSION, name: str = "countdown", unavailable: str | None = None
) -> RewardClient:
    described = RewardDescription(
        name=name, documentation="", params_schema={}, columns=["nums"], code_hash="0", unavailable=unavailable
    )
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
        (a_server(unavailable="no Landlock"), {"nums": [1]}, UnavailableError, "not compute countdown: no Landlock"),
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
        hashes = {spec.name: f"code of {spec.name}" for spec in message.rewards}
        scored = ScoreResponse(results=results, elapsed_s=0.0, code_hashes=hashes)
        return httpx.Response(200, text=scored.model_dump_json())

    texts = ["fine", "late", "broken"]
    episodes = [completion(text, [1], [-0.1], text, "stop", [(0, 1)]) for text in texts]
    group = Group(0, PromptRow(0, [1], "p", {}), episodes)
    config = RewardConfig(reward_funcs=["seen", "right"], reward_weights=[0.0, 1.0])
    async with RewardClient("http://127.0.0.1:1", transport=httpx.MockTransport(answer)) as client:
        await RewardStage(client, config).score([group], step=1)
    assert asked == [texts, ["late", "broken"], ["late", "broken"]]
    assert [sample.total for sample in group.episodes] == [1.0, 1.0, None]
    assert [sample.left_out_because(mask_truncated=False) for sample in group.episodes[2:]] == ["error"]
    with pytest.raises(RunError, match=r"only 2 of 3 samples .* for instance right error: it is error"):
        check_enough_scored([group], 1.0)


async def test_a_row_of_another_task_has_null_for_the_column_of_a_reward_that_it_lacks():
    """Its total is the score of the reward that can judge it, and nothing is asked again."""
    executor, requests = InlineExecutor(), 0
    scoring = Scoring(executor, Metrics())

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal requests
        requests += 1
        response = await scoring.score(ScoreRequest.model_validate_json(request.content))
        return httpx.Response(200, text=response.model_dump_json())

    rows: dict[str, dict[str, object]] = {
        "<answer>2 + 3</answer>": {"solution": "5", "nums": [2, 3], "target": 5},
        "<answer>2 + 4</answer>": {"nums": [2, 4], "target": 6},
        "<answer>8</answer>": {"solution": "7", "nums": None, "target": None},
    }
    groups = [
        Group(0, PromptRow(0, [1], "p", columns), [completion(text, [1], [-0.1], text, "stop", [(0, 1)])])
        for text, columns in rows.items()
    ]
    async with RewardClient("http://127.0.0.1:1", transport=httpx.MockTransport(answer)) as client:
        stage = RewardStage(client, RewardConfig(reward_funcs=["accuracy", "countdown"]))
        stage.known = {name: reward.description for name, reward in executor.rewards.items()}
        await stage.score(groups, step=1)
    assert [group.episodes[0].total for group in groups] == [2.0, 1.0, 0.0]
    assert requests == 1


async def test_a_score_beyond_what_a_float32_holds_is_none_and_names_its_reward():
    """Its square overflows: every statistic of the batch would."""

    def answer(request: httpx.Request) -> httpx.Response:
        message = ScoreRequest.model_validate_json(request.content)
        results = []
        for sample in message.samples:
            found = {
                "huge": RewardScore(score=1e200 if sample.completion == "b" else 0.5, status="ok"),
                "plain": RewardScore(score=0.25, status="ok"),
            }
            results.append(ScoreResult(id=sample.id or "", total=total_score(message.rewards, found), rewards=found))
        hashes = {spec.name: f"code of {spec.name}" for spec in message.rewards}
        scored = ScoreResponse(results=results, elapsed_s=0.0, code_hashes=hashes)
        return httpx.Response(200, text=scored.model_dump_json())

    episodes = [completion(text, [1], [-0.1], text, "stop", [(0, 1)]) for text in ("a", "b")]
    group = Group(0, PromptRow(0, [1], "p", {}), episodes)
    async with RewardClient("http://127.0.0.1:1", transport=httpx.MockTransport(answer)) as client:
        await RewardStage(client, RewardConfig(reward_funcs=["huge", "plain"])).score([group], step=1)
    assert [one.total for one in episodes] == [0.75, None]
    with pytest.raises(RunError, match=r"huge error: its score 1e\+200 is beyond 1e\+30"):
        check_enough_scored([group], 1.0)


async def test_each_dataset_is_scored_by_its_own_rewards():
    asked: list[tuple[dict[str, float], list[str]]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        message = ScoreRequest.model_validate_json(request.content)
        weights = {spec.name: spec.weight for spec in message.rewards}
        asked.append((weights, [sample.completion for sample in message.samples]))
        found = {name: RewardScore(score=1.0, status="ok") for name in weights}
        results = [ScoreResult(id=one.id or "", total=sum(weights.values()), rewards=found) for one in message.samples]
        hashes = {name: f"code of {name}" for name in weights}
        scored = ScoreResponse(results=results, elapsed_s=0.0, code_hashes=hashes)
        return httpx.Response(200, text=scored.model_dump_json())

    def group(dataset: str) -> Group:
        episode = completion(dataset, [1], [-0.1], f"of {dataset}", "stop", [(0, 1)])
        return Group(0, PromptRow(0, [1], "p", {}, dataset), [episode])

    groups = [group(name) for name in ("math", "plain", "math", "eval/math", "taught")]
    config = RewardConfig(reward_funcs=["countdown", "format", "accuracy"], accuracy_reward="format")
    own = {"math": {"accuracy": 2.0}, "eval/math": {"accuracy": 1.0, "format": 0.0}, "taught": {}}
    async with RewardClient("http://127.0.0.1:1", transport=httpx.MockTransport(answer)) as client:
        await RewardStage(client, config, own_rewards=own).score(groups, step=1)
    assert asked == [
        ({"accuracy": 2.0}, ["of math", "of math"]),
        ({"countdown": 1.0, "format": 1.0, "accuracy": 1.0}, ["of plain"]),
        ({"accuracy": 1.0, "format": 0.0}, ["of eval/math"]),
    ]
    assert [one.episodes[0].total for one in groups] == [2.0, 3.0, 2.0, 1.0, None]
    assert all(one.episodes[0].correct for one in groups[:4]), "without `format` the first of its own decides"
    check_enough_scored(groups, 1.0)  # what no reward judges lacks no score


async def test_what_a_dataset_only_logs_does_not_decide_its_accuracy():
    def answer(request: httpx.Request) -> httpx.Response:
        message = ScoreRequest.model_validate_json(request.content)
        found = {spec.name: RewardScore(score=float(spec.name == "accuracy"), status="ok") for spec in message.rewards}
        results = [ScoreResult(id=one.id or "", total=1.0, rewards=found) for one in message.samples]
        return httpx.Response(200, text=ScoreResponse(results=results, elapsed_s=0.0).model_dump_json())

    for dataset, correct in (("logs", True), ("weighs", False)):
        group = Group(0, PromptRow(0, [1], "p", {}, dataset), [completion("a", [1], [-0.1], "a", "stop", [(0, 1)])])
        own = {"logs": {"format": 0.0, "accuracy": 1.0}, "weighs": {"accuracy": 1.0, "format": 1.0}}
        async with RewardClient("http://127.0.0.1:1", transport=httpx.MockTransport(answer)) as client:
            config = RewardConfig(reward_funcs=["format", "accuracy"])
            await RewardStage(client, config, own_rewards=own).score([group], step=1)
        assert group.episodes[0].correct is correct


def test_a_request_holds_whole_groups_and_a_bounded_number_of_tokens():
    def group(position: int, num_tokens: int) -> Group:
        episode = completion("", [1] * num_tokens, [-0.1] * num_tokens, "", "stop", [(0, num_tokens)])
        return Group(position, PromptRow(0, [1], "p", {}), [episode] * 2)

    sizes = (TOKENS_OF_REQUEST // 4, TOKENS_OF_REQUEST // 4, 1, TOKENS_OF_REQUEST, 1, 1)
    requests = in_requests([group(position, size) for position, size in enumerate(sizes)])
    assert [[one.position for one in request] for request in requests] == [[0, 1], [2], [3], [4, 5]]
    assert len(in_requests([Group(0, PromptRow(0, [1], "p", {}), [])])) == 1, "one that sampled nothing comes first"


async def test_a_column_is_needed_only_where_its_reward_is_asked_for():
    own = {"math": {"format": 1.0}}
    config = RewardConfig(reward_funcs=["countdown"])
    rows = [PromptRow(0, [1], "p", {"nums": [1]}, "numbers"), PromptRow(0, [1], "p", {"solution": "1"}, "math")]
    held_out = PromptRow(0, [1], "p", {"solution": "1"}, "eval/")
    async with a_server() as client:
        await RewardStage(client, config, own_rewards=own).check(rows)
        with pytest.raises(UsageError, match=r"needs the column nums; the dataset math has solution .*datasets\.math"):
            await RewardStage(client, config).check(rows)
        with pytest.raises(UsageError, match=r"needs the column nums; the held-out dataset has solution"):
            await RewardStage(client, config).check([rows[0], held_out])


async def test_a_dry_run_says_what_the_rewards_say_of_the_first_rows():
    scoring = Scoring(InlineExecutor(), Metrics())

    async def answer(request: httpx.Request) -> httpx.Response:
        response = await scoring.score(ScoreRequest.model_validate_json(request.content))
        return httpx.Response(200, text=response.model_dump_json())

    rows = [
        PromptRow(0, [1], "p", {"solution": solution}, dataset)
        for dataset, solution in {"text": "5", "number": 5, "prose": "see the figure"}.items()
    ]
    async with RewardClient("http://127.0.0.1:1", transport=httpx.MockTransport(answer)) as client:
        rows.append(PromptRow(0, [1], "p", {}, "taught"))
        stage = RewardStage(client, RewardConfig(reward_funcs=["accuracy"]), own_rewards={"taught": {}})
        faults = await stage.faults_of_first_rows(rows)
    assert faults == [
        "accuracy gives the first row of the dataset number no score: "
        "column solution: Input should be a valid string, not 5",
        "accuracy gives the first row of the dataset prose no score: "
        "the column solution has no answer that can be parsed",
    ]


@pytest.mark.parametrize(
    ("ending", "params", "found"),
    [
        ("assistant\n<think>", {}, ["format", "accuracy", "tag_count"]),
        ("<think>\n\n", {name: {"prefix": "<think>"} for name in ("accuracy", "tag_count")}, ["format"]),
        (
            "Think first.\n<think>\n",
            {name: {"prefix": "<think>\n"} for name in ("format", "accuracy", "tag_count")},
            [],
        ),
        ("assistant\n", {}, []),
        ("<think>\n\n</think>\n\n", {}, []),
    ],
)
async def test_a_prompt_that_opens_thinking_is_named_beside_rewards_that_look_for_the_tag(
    ending: str, params: dict[str, dict[str, object]], found: list[str]
):
    rewards = RewardList(rewards=[reward.description for reward in InlineExecutor().rewards.values()])
    info = RewardInfo(version="0", protocol_version=PROTOCOL_VERSION, rewards={}, workers=1)
    transport = httpx.MockTransport(
        lambda request: httpx.Response(200, text=(info if request.url.path == "/info" else rewards).model_dump_json())
    )
    tokenizer = make_tokenizer()
    rows = [
        PromptRow(0, tokenizer(f"<|im_start|>2+2?{ending}")["input_ids"], "2+2?", {"solution": "4"}, dataset)
        for dataset in ("", "eval/")
    ]
    config = RewardConfig(reward_funcs=["format", "accuracy", "tag_count"], params=params)
    async with RewardClient("http://127.0.0.1:1", transport=transport) as client:
        stage = RewardStage(client, config, own_rewards={"eval/": {"min_length": 1.0}})
        await stage.check(rows)
    assert stage.prefix_doubts(rows, tokenizer) == [
        f"the prompts end with <think>, so no completion has it, and {name} looks for it: set "
        f'reward.params.{name}.prefix to "<think>"'
        for name in found
    ]


def test_a_prefix_that_no_prompt_ends_with_is_named():
    described = {reward.description.name: reward.description for reward in InlineExecutor().rewards.values()}
    specs = [RewardSpec(name="format", params={"prefix": "<think>"})]
    tokenizer = make_tokenizer()
    row = PromptRow(0, tokenizer("assistant\n")["input_ids"], "", {}, "math")
    assert prefix_doubts([row], tokenizer, lambda dataset: specs, described) == [
        "reward.params.format.prefix puts <think> before completions, and the prompts of math do not end with it"
    ]


class TestChangedCode:
    @staticmethod
    def served(*hashes: str) -> httpx.MockTransport:
        """A server whose answers are by this code, one after the other."""
        codes = iter(hashes)

        def answer(request: httpx.Request) -> httpx.Response:
            message = ScoreRequest.model_validate_json(request.content)
            ok = RewardScore(score=1.0, status="ok")
            results = [ScoreResult(id=sample.id or "", total=1.0, rewards={"right": ok}) for sample in message.samples]
            found = ScoreResponse(results=results, elapsed_s=0.0, code_hashes={"right": next(codes)})
            return httpx.Response(200, text=found.model_dump_json())

        return httpx.MockTransport(answer)

    @staticmethod
    async def score(transport: httpx.MockTransport, *steps: int, code: RewardCode, accept: bool = False) -> None:
        config = RewardConfig(reward_funcs=["right"], accept_changed_code=accept)
        async with RewardClient("http://127.0.0.1:1", transport=transport) as client:
            stage = RewardStage(client, config, code=code)
            for step in steps:
                group = Group(step, PromptRow(0, [1], "p", {}), [completion("a", [1], [-0.1], "a", "stop", [(0, 1)])])
                await stage.score([group], step=step)

    async def test_it_ends_the_run_with_status_2_both_hashes_and_the_flag_that_accepts_it(self):
        for code in (RewardCode(accept=False), RewardCode({"right": "old"}, accept=False)):
            with pytest.raises(ServersError, match="right was old and is new") as ended:
                await self.score(self.served("old", "new"), 1, 2, code=code)
            assert ended.value.exit_status == 2
            assert "--reward.accept_changed_code true" in (ended.value.hint or "")

    async def test_at_the_start_of_a_resumed_run_too(self):
        code = RewardCode({"countdown": "before"}, accept=False)
        async with a_server() as client:
            stage = RewardStage(client, RewardConfig(reward_funcs=["countdown"]), code=code)
            with pytest.raises(UsageError, match="countdown was before and is 0"):
                await stage.check([PromptRow(0, [1], "prompt", {"nums": [1]})])

    async def test_accepted_it_changes_between_two_steps_and_never_within_one(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("grpo_trainer.sampling.reward.PAUSE_S", 0.0)
        code = RewardCode({"right": "old"}, accept=True)
        await self.score(self.served("old", "new", "old", "new"), 1, 1, 2, code=code, accept=True)
        assert code.hashes == {"right": "new"}
