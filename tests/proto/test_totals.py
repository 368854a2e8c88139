"""What a sample is paid, and what broke is scored again."""

import pytest

from grpo_proto import RewardScore, RewardSpec, ScoreRequest, ScoreResponse, ScoreResult, ScoreSample
from grpo_proto.totals import missing_because, score_broken_again, total_score


def score_of(value: float | str) -> RewardScore:
    """A score, or a status without one."""
    is_number = not isinstance(value, str)
    return RewardScore(score=value if is_number else None, status="ok" if is_number else value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parts", "total"),
    [
        ([(1.0, 1.0), (0.1, 1.0)], 1.1),
        ([(1.0, 0.0)], 0.0),
        ([(-2.0, 1.5)], -3.0),
        # Not its task: the others decide.
        ([(1.0, "unscorable"), (0.1, 1.0)], 0.1),
        ([(1.0, "unscorable"), (0.1, "unscorable")], None),
        # Something broke: 0.1 would be a wrong answer's total.
        ([(1.0, "timeout"), (0.1, 1.0)], None),
        ([(1.0, "error"), (0.1, 1.0)], None),
        ([(1.0, 1.0), (-0.1, "error")], None),
        # Without a weight it is only looked at.
        ([(1.0, 1.0), (0.0, "error")], 1.0),
        ([(0.0, 1.0)], None),
        ([(1.0, "unscorable"), (0.0, 1.0)], None),
        ([(1e308, 1e308)], None),
        ([(1e308, 1.0), (1e308, 1.0)], None),
        ([(1e308, 1e308), (-1e308, 1e308)], None),
    ],
)
def test_totals(parts: list[tuple[float, float | str]], total: float | None):
    specs = [RewardSpec(name=str(number), weight=weight) for number, (weight, _) in enumerate(parts)]
    scores = {str(number): score_of(value) for number, (_, value) in enumerate(parts)}
    assert total_score(specs, scores) == total


def test_of_several_reasons_the_gravest_of_a_reward_with_a_weight_is_told():
    weights = {"light": 0.0, "none": 1.0, "late": 1.0, "broken": 1.0}
    statuses = {"light": "error", "none": "unscorable", "late": "timeout", "broken": "error"}
    scores = {name: score_of(status) for name, status in statuses.items()}
    for name in ("broken", "late", "none"):
        specs = [RewardSpec(name=each, weight=weight) for each, weight in weights.items()]
        assert missing_because(specs, scores) == (name, scores[name])
        del weights[name]
    assert missing_because([RewardSpec(name="light", weight=0.0)], scores) is None


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_proto.totals.PAUSES_S", (0.0, 0.0, 0.0))


class Server:
    """Answers with what the scores of each sample are said to be, one after the other."""

    def __init__(self, **scores: dict[str, list[float | str]]):
        self.scores, self.asked = scores, list[tuple[list[str], list[str]]]()

    async def score(self, request: ScoreRequest) -> ScoreResponse:
        names = [spec.name for spec in request.rewards]
        self.asked.append((names, [sample.completion for sample in request.samples]))
        results = []
        for sample in request.samples:
            values = {name: self.scores[sample.completion][name] for name in names}
            found = {name: score_of(queue.pop(0) if len(queue) > 1 else queue[0]) for name, queue in values.items()}
            results.append(ScoreResult(id=sample.completion, total=total_score(request.rewards, found), rewards=found))
        return ScoreResponse(results=results, elapsed_s=0.0)


REQUEST = ScoreRequest(
    rewards=[RewardSpec(name="right"), RewardSpec(name="form", weight=0.1), RewardSpec(name="seen", weight=0.0)],
    samples=[ScoreSample(completion=text) for text in ("a", "b", "c", "d")],
)


def scores_that_break() -> Server:
    return Server(
        a={"right": [1.0], "form": [1.0], "seen": ["error"]},
        b={"right": ["timeout", 1.0], "form": [0.0], "seen": [1.0]},
        c={"right": ["unscorable"], "form": ["error", "error", 1.0], "seen": [1.0]},
        d={"right": ["error"], "form": [1.0], "seen": [1.0]},
    )


async def test_what_broke_is_scored_again_and_nothing_else(no_pauses):
    server = scores_that_break()
    answer = await score_broken_again(REQUEST, await server.score(REQUEST), server.score, retry_for_s=60.0)
    assert server.asked[1:] == [
        *[(["right"], ["b", "d"]), (["form"], ["c"])],
        *[(["right"], ["d"]), (["form"], ["c"])],
        (["right"], ["d"]),
    ]
    assert [result.total for result in answer.results] == [1.1, 1.0, 0.1, None]
    assert answer.results[3].rewards["right"].status == "error"
    assert answer.results[0].rewards["seen"].status == "error"


async def test_without_time_for_it_nothing_is_scored_again(no_pauses):
    server = scores_that_break()
    first = await server.score(REQUEST)
    assert await score_broken_again(REQUEST, first, server.score, retry_for_s=0.0) == first


async def test_a_value_of_a_column_that_no_repeat_mends_is_not_scored_again(no_pauses):
    request = REQUEST.model_copy(update={"samples": REQUEST.samples[3:]})
    server = scores_that_break()
    first = await server.score(request)
    wrong = RewardScore(score=None, status="error", detail="column solution: Input should be a valid string, not 3")
    first.results[0].rewards["right"] = wrong
    assert (await score_broken_again(request, first, server.score, retry_for_s=60.0)).results == first.results
    assert len(server.asked) == 1
