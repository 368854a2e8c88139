"""`grpo-reward test`: good rewards pass, and what is wrong with bad ones is found."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from grpo_reward.__main__ import main
from grpo_reward.cli import scorers
from grpo_reward.cli.answer_frame import frame_of, wrong_answers
from grpo_reward.cli.examples import EXAMPLES
from grpo_reward.cli.fuzzing import cheap_names
from grpo_reward.cli.ideas import empty_ideas, mutated
from grpo_reward.executors.inline import InlineExecutor

pytestmark = pytest.mark.processes

# What people write: an answer taken by a pattern and handed to eval, a substring, a counter, the order of a set.
PLUGIN = """
import re, time
from grpo_reward import reward

calls = []

@reward
def evaluated(completion: str, *, solution: str) -> float:
    found = re.search("<answer>(.*?)</answer>", completion, re.DOTALL)
    if found is None:
        return 0.0
    if "**" in found[1]:
        time.sleep(60)
    return float(int(found[1].strip() or 0) == int(solution))

@reward
def contained(completion: str, *, solution: str) -> float:
    return float(solution in completion)

@reward
def anything(completion: str) -> float:
    return 1.0

@reward
def fewer_each_time(completion: str) -> float:
    calls.append(completion)
    return 1 / len(calls) if completion else 0.0

@reward
def by_hash(completion: str) -> float:
    return hash(completion) % 1000 / 1000

@reward
def first_of_all(completions: list[str]) -> list[float]:
    return [float(number == 0) for number in range(len(completions))]

@reward
def in_a_group(completions: list[str], *, solution: list[str]) -> list[float]:
    right = [text == f"<answer>{gold}</answer>" for text, gold in zip(completions, solution)]
    return [1.0 * good for good in right]

@reward
def generous(completion: str, *, solution: str) -> float:
    if len(completion) > 1000:
        return 7.0
    return float(completion.strip() == f"<answer>{solution}</answer>")
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("plugin") / "cli_bad_plugin.py"
    path.write_text(PLUGIN)
    return str(path)


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "gold.jsonl"
    lines = [{"prompt": f"What is {n}?", "solution": str(n), "completion": f"<answer>{n}</answer>"} for n in (42, 17)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.fixture
def two_rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"completion": "a"}\n{"completion": "b"}\n')
    return str(path)


@pytest.fixture
def check(capsys):
    """main() → exit status, and check → (status, examples by what they are about)."""

    def call(*arguments: str) -> tuple[Any, dict[str, tuple[str, list[dict[str, Any]]]]]:
        with pytest.raises(SystemExit) as ended:
            main(["test", *arguments, "--json", "--workers", "2"])
        report = json.loads(capsys.readouterr().out)
        assert report["passed"] == (ended.value.code == 0)
        return ended.value.code, {item["name"]: (item["status"], item["examples"]) for item in report["checks"]}

    return call


@pytest.fixture
def inline(monkeypatch):
    """Rewards run in this process, which saves two seconds: for those that do it no harm."""
    monkeypatch.setattr(scorers, "make_executor", lambda settings, metrics: InlineExecutor(settings.plugin))


def ideas_of(checks: dict[str, tuple[str, list[dict[str, Any]]]], name: str) -> set[str]:
    return {example["idea"] for example in checks[name][1]}


def test_a_good_reward_passes_on_its_built_in_examples(check, inline):
    status, checks = check("countdown", "--fuzz", "40", "--time-limit-s", "30")
    assert status == 0
    assert {found for found, _ in checks.values()} == {"pass"}
    assert set(checks) == {
        "gold answers", "same again", "same in a new process", "any order", "any batch", "time limit", "no hang",
        "no crash", "no cheap full score", "range",
    }  # fmt: skip


def test_a_good_reward_of_groups_passes(check, plugins_only, plugin, rows):
    status, checks = check("in_a_group", "--plugin", plugin, "--data", rows, "--fuzz", "10", "--time-limit-s", "30")
    assert status == 0
    assert {name for name, (found, _) in checks.items() if found != "pass"} == {"any batch"}


def test_a_hang_a_crash_and_an_empty_answer_that_counts_as_0_are_found(check, plugins_only, plugin, rows):
    status, checks = check(
        "evaluated", "--plugin", plugin, "--data", rows, "--time-limit-s", "0.3", "--fuzz", "0", "--allow", "half a tag"
    )
    assert status == 1
    assert checks["gold answers"][0] == "pass"
    assert {"power of a power", "chain of powers"} <= ideas_of(checks, "no hang")
    assert {"superscript digits", "division by zero"} <= ideas_of(checks, "no crash")
    example = next(item for item in checks["no hang"][1] if item["idea"] == "power of a power")
    assert example["status"] == "timeout"
    assert "9**9**9" in example["completion"]
    assert checks["no cheap full score"] == ("pass", [])


def test_a_reward_that_takes_any_of_several_answers_is_found(check, plugins_only, plugin, rows):
    status, checks = check("contained", "--plugin", plugin, "--data", rows, "--fuzz", "0")
    assert status == 1
    assert ideas_of(checks, "no cheap full score") >= {
        "the prompt again", "all numbers from 0 to 100", "two answers with or", "two contradicting blocks",
        "the right answer before the wrong one",
    }  # fmt: skip
    assert "empty completion" not in ideas_of(checks, "no cheap full score")
    assert {name for name, (found, _) in checks.items() if found == "fail"} == {"no cheap full score"}


def test_what_says_nothing_must_not_score_full_unless_allowed(check, inline, plugin, two_rows):
    arguments = ("anything", "--plugin", plugin, "--data", two_rows, "--fuzz", "0")
    status, checks = check(*arguments)
    empty = {idea.name for idea in empty_ideas()}
    assert (status, ideas_of(checks, "no cheap full score")) == (1, empty)
    status, checks = check(*arguments, "--allow", *empty)
    assert status == 0


@pytest.mark.parametrize(
    ("reward", "failing"),
    [("fewer_each_time", {"same again", "any order"}), ("first_of_all", {"any order"})],
)
def test_scores_that_depend_on_other_samples_are_found(check, inline, plugin, two_rows, reward, failing):
    status, checks = check(reward, "--plugin", plugin, "--data", two_rows, "--fuzz", "0")
    assert status == 1
    assert failing <= {name for name, (found, _) in checks.items() if found == "fail"}
    example = checks[min(failing)][1][0]
    assert example["score"] != example["expected"]


def test_scores_that_another_process_would_not_give_are_found(check, plugins_only, plugin, two_rows):
    status, checks = check("by_hash", "--plugin", plugin, "--data", two_rows, "--fuzz", "0")
    assert (status, checks["same again"][0], checks["same in a new process"][0]) == (1, "pass", "fail")


def test_scores_outside_the_range_and_gold_that_is_none_are_found(check, inline, plugin, rows):
    arguments = ("generous", "--plugin", plugin, "--data", rows, "--fuzz", "0")
    status, checks = check(*arguments)
    assert (status, checks["gold answers"][0], checks["range"][0]) == (1, "pass", "fail")
    assert checks["range"][1][0]["score"] == 7.0
    status, checks = check(*arguments, "--range", "0", "7", "--gold", "\\boxed{solution}")
    assert checks["range"][0] == "pass"
    assert checks["gold answers"][0] == "fail"
    example = checks["gold answers"][1][0]
    assert (example["row"], example["score"], example["expected"]) == ("gold.jsonl:1", 0.0, 1.0)
    assert example["completion"] == "'\\\\boxed42'"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["contand"], "there is no reward contand: did you mean contained?"),
        (["contained"], 'no built-in examples for contained: give --data FILE.jsonl, .*"solution": …}'),
        (["contained", "--gold", "solution"], "give --data FILE.jsonl, too"),
        (["contained", "--allow", "emty completion"], "--allow 'emty completion': .* did you mean empty completion"),
        (["contained", "--range", "0"], "--range"),
        (["contained", "--full", "inf"], "--full: must be a finite number, not 'inf'"),
    ],
)
def test_wrong_usage(capsys, inline, plugin, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(["test", *arguments, "--plugin", plugin])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert re.match(f"error: .*{message}", err)


def test_for_people_every_check_is_a_line_with_its_counter_examples(capsys, inline, plugin, rows):
    with pytest.raises(SystemExit) as ended:
        main(["test", "contained", "--plugin", plugin, "--data", rows, "--fuzz", "0"])
    out = capsys.readouterr().out
    assert ended.value.code == 1
    assert "pass  gold answers" in out
    assert "fail  no cheap full score" in out
    assert "the prompt again (2 times): score 1: 'What is 42?'" in out
    assert "contained failed: no cheap full score (2 rows, seed 0, " in out


def test_random_changes_are_the_same_for_a_seed():
    def some(seed: int) -> list[str]:
        chance = random.Random(seed)
        return [mutated(chance, ["<answer>1 + 2</answer>", ""]) for _ in range(50)]

    assert some(1) == some(1)
    assert some(1) != some(2)
    assert len(set(some(1))) > 25
    for text in some(1):
        text.encode()


@pytest.mark.parametrize(
    ("completion", "before", "answer"),
    [
        ("<think>1</think><answer> 2 </answer>.", "<think>1</think><answer> ", "2"),
        ("<answer>1</answer><answer>2</answer>", "<answer>1</answer><answer>", "2"),
        ("It is \\boxed{\\frac{1}{2}}.", "It is \\boxed{", "\\frac{1}{2}"),
        ("so\n#### 12", "so\n#### ", "12"),
        ("<answer>\n```python\nx\n```\n</answer>", "<answer>\n```python\n", "x"),
        ("```json\n{}\n```", "```json\n", "{}"),
        ("<tool_call>{}</tool_call>", "<tool_call>", "{}"),
        ("Paris", "", "Paris"),
        ("<answer></answer>", "<answer>", ""),
        ("\\boxed{", "", "\\boxed{"),
        ("", "", ""),
    ],
)
def test_where_the_answer_stands(completion, before, answer):
    frame = frame_of(completion)
    assert (frame.before, frame.answer) == (before, answer)
    assert frame.around(answer) == completion


@pytest.mark.parametrize(
    ("answer", "wrong"), [("19 + 35", "20 + 46"), ("B", "A"), ("A", "B"), ("Paris", "something else")]
)
def test_an_answer_that_is_near_and_wrong(answer, wrong):
    assert wrong_answers(answer) == [wrong]


def test_the_built_in_examples_allow_only_what_there_is():
    for name, example in EXAMPLES.items():
        assert example.allow <= cheap_names(), name
        assert example.low < example.full


def test_an_error_that_is_always_the_same_is_told_a_few_times(tmp_path, capsys, two_rows, inline):
    plugin = tmp_path / "cli_always_raises.py"
    plugin.write_text(
        "from grpo_reward import reward\n\n@reward\ndef broken(completion: str) -> float:\n    return 1 / 0\n"
    )
    arguments = ["test", "broken", "--plugin", str(plugin), "--data", two_rows, "--fuzz", "10", "--workers", "2"]
    with pytest.raises(SystemExit):
        main([*arguments, "--json"])
    (crashes,) = (item for item in json.loads(capsys.readouterr().out)["checks"] if item["name"] == "no crash")
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    shown = capsys.readouterr().out
    assert ended.value.code == 1
    told = shown.partition("no crash")[2].partition("no cheap full score")[0].splitlines()[1:]
    lines = [line for line in told if line.startswith("        ")]
    assert len(lines) == 4
    assert lines[-1].strip() == (
        f"and {len(crashes['examples']) - 3} more with the same error, which --json lists:"
        " ZeroDivisionError: division by zero (cli_always_raises.py, line 5)"
    )
