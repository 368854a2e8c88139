"""`grpo-reward test` and `bench` of a reward that hangs: they end, say what hung, and count what they left out."""

import asyncio
import json
import re
from typing import Any

import pytest

from grpo_proto import RewardScore, RewardSpec, ScoreRequest, ScoreResponse, ScoreResult, ScoreSample
from grpo_reward.__main__ import main
from grpo_reward.cli import benchmark, probe, requests
from grpo_reward.cli.options import CommandFailed
from grpo_reward.cli.rows import Row

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("plugins_only")]

# One computes for ever; the others sleep, which costs the tests beside them nothing.
PLUGIN = """
import time

from grpo_reward import reward

@reward
def short(completion: str) -> float:
    return float(len(completion) < 12)

@reward
def endless(completion: str) -> float:
    while True:
        pass

@reward
def endless_together(completions: list[str]) -> list[float]:
    while True:
        time.sleep(1)

@reward
def endless_when_long(completion: str) -> float:
    while len(completion) > 12:
        time.sleep(1)
    return float(completion.startswith("right"))
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("plugin") / "cli_endless_plugin.py"
    path.write_text(PLUGIN)
    return str(path)


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch):
    monkeypatch.setattr(probe, "PATIENCE_S", 1.0)
    monkeypatch.setattr(probe, "SLACK_S", 0.5)
    monkeypatch.setattr(benchmark, "SLACK_S", 0.5)


@pytest.fixture
def run(capsys, plugin, tmp_path):
    """main() → exit status, stdout, stderr. `lines`: the completions of the file."""

    def call(command: str, reward: str, completions: list[str], *arguments: str) -> tuple[Any, str, str]:
        path = tmp_path / "gold.jsonl"
        path.write_text("".join(json.dumps({"completion": text, "prompt": text}) + "\n" for text in completions))
        with pytest.raises(SystemExit) as ended:
            main([command, reward, "--plugin", plugin, "--data", str(path), "--workers", "2", *arguments])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return call


RIGHT = [f"right {number}" for number in range(20)]


@pytest.mark.parametrize(("reward", "at_least", "at_most"), [("endless", 3, 3), ("endless_together", 3, 4)])
def test_a_reward_that_always_hangs_is_asked_a_few_times(run, reward, at_least, at_most):
    status, out, err = run("test", reward, RIGHT, "--time-limit-s", "0.2", "--json")
    assert (status, err) == (1, "")
    gold, *others = json.loads(out)["checks"]
    assert (gold["name"], gold["status"]) == ("gold answers", "fail")
    assert [example["row"] for example in gold["examples"]] == ["gold.jsonl:1", "gold.jsonl:2", "gold.jsonl:3"]
    assert "no score within 1 s" in gold["examples"][0]["detail"]
    left_out = [f"; {20 - hung} samples left out after {hung} time-outs" for hung in range(at_least, at_most + 1)]
    assert gold["detail"].endswith(tuple(left_out))
    assert {(check["status"], check["detail"]) for check in others} == {
        ("skip", "left out: no row had a score in time")
    }
    assert "no hang" in {check["name"] for check in others}


def test_a_reward_that_hangs_on_some_is_tested_with_the_others(run):
    completions = [*RIGHT[:9], "right, but too long", *RIGHT[9:]]
    status, out, _ = run("test", "endless_when_long", completions, "--time-limit-s", "0.2", "--json", "--fuzz", "40")
    assert status == 1
    checks = {check["name"]: check for check in json.loads(out)["checks"]}
    assert checks["gold answers"]["detail"] == "20 of 21 rows score 1, or what they expect"
    assert checks["gold answers"]["examples"][0]["row"] == "gold.jsonl:10"
    assert checks["time limit"]["detail"] == "20 of 21 rows within 0.2 s"
    for name in ("same again", "same in a new process", "any order", "any batch"):
        assert checks[name]["status"] == "pass"
    assert "had none in time" in checks["same again"]["detail"]
    assert checks["no hang"]["status"] == "fail"
    assert "ended early after" in checks["no hang"]["detail"]


@pytest.mark.parametrize("reward", ["endless", "endless_together"])
def test_bench_ends_with_the_sample_that_hangs(run, reward):
    status, out, err = run("bench", reward, RIGHT, "--timeout-s", "0.5")
    assert (status, out) == (1, "")
    assert err.startswith("error: no score within 0.5 s (--timeout-s) for 'right 0'; the other samples were left out")


def test_bench_ends_when_a_later_sample_hangs(run):
    completions = RIGHT[:4] + ["right, but too long"] * 4
    arguments = ("--timeout-s", "0.5", "--batch", "4", "--concurrent", "1", "--seconds", "600")
    status, out, err = run("bench", "endless_when_long", completions, *arguments)
    assert status == 1
    assert "4 ok" in out
    assert "ended early after 4 time-outs, for instance " in err
    assert "'right, but too long'" in err


@pytest.fixture
def score(capsys, plugin, tmp_path):
    """`grpo-reward score` of these completions → exit status, stdout, stderr."""

    def call(rewards: str, completions: list[str], *arguments: str) -> tuple[Any, str, str]:
        path = tmp_path / "rows.jsonl"
        path.write_text(
            "".join(json.dumps({"completion": text, "group": n // 2}) + "\n" for n, text in enumerate(completions))
        )
        with pytest.raises(SystemExit) as ended:
            main(["score", str(path), "--rewards", rewards, "--plugin", plugin, "--workers", "2", *arguments])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return call


@pytest.mark.parametrize(
    ("reward", "at_most"),
    [
        ("endless", 8),
        # Eight groups of two are in the first request and one of the next two, which may end in the same moment.
        ("endless_together", 24),
    ],
)
def test_score_ends_when_the_first_samples_all_hang(score, tmp_path, reward, at_most):
    kept = tmp_path / "kept.jsonl"
    status, out, err = score(f"short,{reward}", ["right"] * 200, "--timeout-s", "0.3", "--out", str(kept))
    assert (status, out) == (1, "")
    scored = len(kept.read_text().splitlines())
    assert 8 <= scored <= at_most
    assert f"{scored} of 200 samples were scored; they are in {kept}\n" in err
    assert (
        f"error: {reward} had no score within 0.3 s for any of the first {scored} samples; the other {200 - scored} "
        in err
    )
    assert "--timeout-s" in err
    assert "--keep-going" in err
    first = json.loads(kept.read_text().splitlines()[0])
    assert (first["id"], first["rewards"]["short"]["status"]) == ("line 1", "ok")
    assert first["rewards"][reward]["status"] == "timeout"


async def test_two_requests_that_end_in_the_same_moment_are_counted_alike():
    """The one that ended the command must not leave the results of the other one out of its count."""
    asked: list[int] = []
    both = asyncio.Event()

    class Scorer:
        workers = 2

        async def score(self, request: ScoreRequest) -> ScoreResponse:
            asked.append(len(request.samples))
            if len(asked) == 3:
                both.set()
            if len(asked) > 1:
                await both.wait()
            late = {"slow": RewardScore(score=None, status="timeout")}
            results = [ScoreResult(id="", total=None, rewards=late) for _ in request.samples]
            return ScoreResponse(results=results, elapsed_s=0.0)

    sample = ScoreSample(completion="text")
    rows = [
        Row(
            "",
            "",
            sample,
            step=None,
            group=str(n // 2),
            scores={},
            total=None,
            has_total=False,
            expect=None,
            expects=False,
        )
        for n in range(40)
    ]
    specs = [RewardSpec(name="slow")]
    rescoring = requests.Rescoring(Scorer(), specs, rows, compared=True, timeout_s=1.0, gives_up=True, say=print)  # type: ignore[arg-type]
    with pytest.raises(CommandFailed, match="any of the first 24 samples; the other 16 were left out"):
        await rescoring.run()
    assert (asked, sum(result is not None for result in rescoring.results)) == ([8, 8, 8], 24)


def test_score_goes_on_when_told_to(score):
    status, out, _ = score("endless", ["right"] * 12, "--timeout-s", "0.2", "--keep-going", "--json")
    assert status == 1
    assert json.loads(out)["rewards"][0]["statuses"]["timeout"] == 12


def test_score_goes_on_when_some_samples_hang(score):
    texts = ["right, but too long"] * 7 + ["right"] * 50 + ["right, but too long"]
    status, out, err = score("endless_when_long", texts, "--timeout-s", "0.2", "--json")
    assert status == 1
    assert json.loads(out)["rewards"][0]["statuses"] == {"ok": 50, "unscorable": 0, "timeout": 8, "error": 0}
    assert "8 scores failed, for instance endless_when_long of rows.jsonl:1: timeout" in err


def test_score_tells_how_far_it_is(score, monkeypatch):
    monkeypatch.setattr(requests, "WORD_EVERY_S", 0.05)
    texts = ["right"] + ["right, but too long"] * 12
    _, _, err = score("endless_when_long", texts, "--timeout-s", "0.2", "--json")
    assert re.search(r"^0 of 13 samples scored after \d+ s; each may take 0.2 s", err, re.MULTILINE)
    assert re.search(r"^8 of 13 samples scored after \d+ s, 7 time-outs \(--timeout-s 0.2\)$", err, re.MULTILINE)
