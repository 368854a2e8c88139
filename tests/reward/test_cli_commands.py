"""`grpo-reward list`, `score` and `bench`, with real worker processes and against a real server."""

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.reward.plugins_only import COMMAND as OF_PLUGINS
from tests.reward.plugins_only import PLAIN

from grpo_reward.__main__ import main
from grpo_reward.cli import scorers
from grpo_reward.executors.inline import InlineExecutor

pytestmark = pytest.mark.processes

PATIENCE_S = 60.0
COMMAND = [sys.executable, "-m", "grpo_reward"]

PLUGIN = """
from grpo_reward import reward

@reward
def picky(completion: str, *, solution: str, bonus: float = 0.5) -> float | None:
    '''Full for the solution.

    Nothing more.
    '''
    if completion == "raise":
        raise LookupError("no such thing")
    while completion == "loop":
        pass
    return None if completion == "none" else float(completion == solution) + bonus

@reward
def how_many(completions: list[str]) -> list[float]:
    '''The size of the request.'''
    return [float(len(completions))] * len(completions)
"""

ROWS: list[dict[str, Any]] = [
    {"completion": "5", "prompt": "p", "solution": "5", "total": 1.0, "rewards": {"picky": 1.0}},
    {"completion": "6", "prompt": "p", "solution": "5", "total": 0.0, "rewards": {"picky": {"score": 0.0}}},
    {"completion": "none", "prompt": "p", "solution": "5", "total": 0.5, "rewards": {"picky": 0.5}, "id": "lost"},
    {"completion": "7", "prompt": "q", "solution": "7", "total": None, "rewards": {"picky": None}},
    {"completion": "8", "prompt": "q", "solution": "7", "total": 0.0, "rewards": {"picky": 0.0}},
]
LACKS = "1 of 5 scores are null, for instance picky of rows.jsonl:3: unscorable\n"


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("plugin") / "cli_plugin.py"
    path.write_text(PLUGIN)
    return str(path)


@pytest.fixture
def run(capsys):
    """main() → exit status, stdout, stderr."""

    def call(*arguments: str) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return call


@pytest.fixture
def inline(monkeypatch):
    """Rewards run in this process, which saves a second: for what has nothing to do with worker processes."""
    monkeypatch.setattr(scorers, "make_executor", lambda settings, metrics: InlineExecutor(settings.plugin))


def file_of(folder: Path, lines: list[dict[str, Any]]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_list_shows_all_rewards(run, plugin):
    status, out, err = run("list", "--plugin", plugin)
    assert (status, err) == (0, "")
    picky = next(line for line in out.splitlines() if line.startswith("picky"))
    assert "solution" in picky
    assert "bonus=0.5" in picky
    assert picky.startswith("picky (plugin) ")
    assert "countdown (plugin)" not in out
    assert "Full for the solution." in picky
    assert {"countdown", "how_many"} <= {line.split()[0] for line in out.splitlines() if line.strip()}


def test_list_of_one_reward_says_everything(run, inline, plugin):
    status, out, _ = run("list", "picky", "--plugin", plugin, "--json")
    found = json.loads(out)
    assert status == 0
    assert found["params"] == {"bonus": {"required": False, "default": 0.5, "type": "number"}}
    assert (found["columns"], found["scores"], found["summary"]) == (["solution"], "samples", "Full for the solution.")
    assert "Nothing more." in found["documentation"]
    status, out, _ = run("list", "picky", "--plugin", plugin)
    assert status == 0
    assert "one sample at a time" in out
    assert "Nothing more." in out


def test_score_reports_and_compares(run, plugins_only, plugin, tmp_path):
    out_file = tmp_path / "out.jsonl"
    status, out, err = run(
        "score", file_of(tmp_path, ROWS), "--rewards", "picky,how_many:0.1", "--plugin", plugin,
        "--param", "picky.bonus=0", "--out", str(out_file), "--json",
    )  # fmt: skip
    assert (status, err) == (0, LACKS.replace("1 of 5", "1 of 10"))
    report = json.loads(out)
    picky, how_many = report["rewards"]
    assert picky["statuses"] == {"ok": 4, "unscorable": 1, "timeout": 0, "error": 0}
    assert (picky["mean"], picky["min"], picky["max"], picky["scored"]) == (0.5, 0.0, 1.0, 4)
    assert how_many["mean"] == 5.0
    assert picky["seconds"] > 0
    agreement = report["agreement"]["picky"]
    assert (agreement["pairs"], agreement["equal"], agreement["lost"], agreement["gained"]) == (3, 1.0, 1, 1)
    assert set(report["agreement"]) == {"picky", "total"}
    assert [entry["id"] for entry in report["most_different"]] == ["lost", "line 4"]
    assert report["advantages"]["groups"] == 1
    lines = [json.loads(line) for line in out_file.read_text().splitlines()]
    assert lines[2] == {
        "id": "lost",
        "total": 0.5,
        "rewards": {"picky": {"score": None, "status": "unscorable"}, "how_many": {"score": 5.0, "status": "ok"}},
    }
    assert [line["total"] for line in lines] == [1.5, 0.5, 0.5, 1.5, 0.5]


def test_score_shows_tables(run, inline, plugin, tmp_path):
    status, out, _ = run("score", file_of(tmp_path, ROWS), "--rewards", "picky", "--plugin", plugin, "--top", "1")
    assert status == 0
    assert "rows.jsonl: 5 samples, 2 groups" in out
    assert "Against the scores in the file" in out
    assert "Advantages within 1 groups" in out
    assert "'none'" in out
    assert "line 4" not in out


def test_what_failed_is_told_apart_and_ends_with_1(run, plugins_only, plugin, tmp_path):
    rows = [{"completion": text, "solution": "5"} for text in ("raise", "loop", "none", "5")]
    arguments = ("score", file_of(tmp_path, rows), "--rewards", "picky", "--plugin", plugin, "--timeout-s", "0.3")
    status, out, err = run(*arguments, "--json")
    assert status == 1
    assert json.loads(out)["rewards"][0]["statuses"] == {"ok": 1, "unscorable": 1, "timeout": 1, "error": 1}
    assert json.loads(out)["advantages"] is None
    assert "2 scores failed, for instance picky of rows.jsonl:1: error: LookupError: no such thing" in err


def test_lines_without_a_group_are_one_request_for_a_batch_reward(run, inline, plugin, tmp_path):
    rows = [{"completion": "c"}] * 300
    _, out, _ = run("score", file_of(tmp_path, rows), "--rewards", "how_many", "--plugin", plugin, "--json")
    assert json.loads(out)["rewards"][0]["mean"] == 300.0


@pytest.mark.parametrize(
    ("rewards", "more", "status", "message"),
    [
        ("pickyy", [], 2, "there is no reward pickyy: did you mean picky?"),
        ("picky", ["--param", "picky.bonos=1"], 2, "picky has no param bonos (did you mean bonus?)"),
        ("picky", ["--param", "picky.bonus=x"], 2, "params of picky: bonus: "),
        ("countdown", [], 1, "rows.jsonl:1: countdown needs the column nums, which 5 lines lack"),
        ("picky", ["--out", "/nowhere/out.jsonl"], 2, "--out /nowhere/out.jsonl: there is no folder /nowhere"),
        ("picky", ["--workers", "many"], 2, "--workers: "),
        ("picky=0.5", [], 2, "--rewards picky=0.5: a weight is written picky:0.5"),
        ("regex", [], 2, "regex needs pattern: add --param regex.pattern=VALUE (grpo-reward list regex)"),
        ("soft_overlong", [], 2, "add --param soft_overlong.max_len=VALUE --param soft_overlong.cache_len=VALUE"),
        ("countdown", [], 1, "which 5 lines lack; it has solution"),
        ("format", ["--param", "format.strict=maybe"], 2, "(grpo-reward list format shows their types)"),
    ],
)
def test_what_cannot_be_scored_is_said(run, inline, plugin, tmp_path, rewards, more, status, message):
    found, out, err = run("score", file_of(tmp_path, ROWS), "--rewards", rewards, "--plugin", plugin, "--json", *more)
    assert (found, out) == (status, "")
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no command"),
        (["scroe"], "unknown command scroe: did you mean score?"),
        (["score", "no.jsonl", "--rewards", "format"], "there is no file no.jsonl"),
        (["score", "--rewards", "format"], "say which file: grpo-reward score FILE.jsonl --rewards "),
        (["score", __file__], "say with --rewards what to score with: grpo-reward score FILE.jsonl --rewards "),
        (["score", "--reward", "format", __file__], "unknown option --reward: did you mean --rewards?"),
        (["score", "--rewards", "format", "countdown", __file__], "commas between them: --rewards format,countdown ("),
        (["score", "--rewards", "format", __file__, __file__], "one file at a time, not 2: cat "),
        (["score", "/", "--rewards", "format"], "/ is a folder, not a file"),
        (["test"], "needs NAME (grpo-reward test --help)"),
        (["bench", "format", "--batch", "0"], "must be a whole number from 1 on, not '0'"),
        (["bench", "format", "--seconds", "-1"], "--seconds"),
        (["bench", "reward_model"], "there are no built-in examples for reward_model: give --data FILE.jsonl"),
        (["list", "--url", "http://127.0.0.1:9"], "http://127.0.0.1:9: "),
    ],
)
def test_wrong_usage_is_said_on_stderr(run, inline, arguments, message):
    status, out, err = run(*arguments)
    assert status == (1 if "--url" in arguments else 2)
    assert out == ""
    assert message in err


def test_a_plugin_that_cannot_be_used_is_one_line(run, plugins_only):
    assert run("list", "--plugin", "no.py") == (1, "", "error: there is no plugin file no.py\n")


def test_a_plugin_takes_no_file_and_no_name_for_another_plugin(run, inline, plugin, tmp_path):
    path = file_of(tmp_path, ROWS)
    status, out, _ = run("score", "--json", "--rewards", "picky", "--plugin", plugin, path)
    assert (status, json.loads(out)["samples"]) == (0, 5)
    assert run("list", "--plugin", plugin, "picky")[0] == 0


def test_rewards_may_come_one_by_one(run, inline, tmp_path):
    rewards = ("--rewards", "format", "--rewards", "min_length:0.5")
    _, out, _ = run("score", file_of(tmp_path, ROWS), *rewards, "--json")
    assert [reward["name"] for reward in json.loads(out)["rewards"]] == ["format", "min_length"]


def test_the_file_is_not_written_over(run, inline, tmp_path, monkeypatch):
    path = file_of(tmp_path, ROWS)
    before = Path(path).read_text()
    monkeypatch.chdir(tmp_path)
    status, _, err = run("score", path, "--rewards", "format", "--out", "./rows.jsonl")
    assert (status, Path(path).read_text()) == (2, before)
    assert "--out rows.jsonl is FILE.jsonl, too: it would be lost" in err
    data = tmp_path / "data.jsonl"
    data.write_text('{"a": 1}\n')
    lines = ("--dataset", str(data), "--out", str(data))
    status, _, err = run("score", path, "--rewards", "format", *lines)
    assert (status, data.read_text()) == (2, '{"a": 1}\n')
    assert "is --dataset, too" in err


def test_a_dash_is_what_comes_in(tmp_path):
    text = Path(file_of(tmp_path, ROWS)).read_text()
    arguments = [*OF_PLUGINS, "score", "-", "--rewards", "plain", "--plugin", PLAIN, "--json"]
    ended = subprocess.run(arguments, input=text, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ended.returncode, json.loads(ended.stdout)["samples"]) == (0, 5)


def test_a_compressed_file_is_told_how_to_be_read(run, inline, tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"completion": "a"}\n'))
    status, _, err = run("score", str(path), "--rewards", "format")
    assert status == 1
    assert f"{path} is compressed: gzip -dc {path} | grpo-reward" in err


def test_a_long_default_is_cut_in_the_table(run, inline):
    status, out, _ = run("list")
    assert status == 0
    assert "Length,\n" not in out
    assert "rubric=Grade the" in out
    assert "claims about" not in out


def test_a_malformed_line_names_file_and_line(run, inline, tmp_path):
    path = tmp_path / "broken.jsonl"
    path.write_text('{"completion": "a"}\n{"completion": \n')
    status, out, err = run("score", str(path), "--rewards", "format")
    assert (status, out) == (1, "")
    assert f"error: {path}, line 2: no JSON: " in err


def test_bench_measures(run):
    status, out, err = run("bench", "countdown", "--seconds", "0.2", "--batch", "16", "--workers", "1", "--json")
    found = json.loads(out)
    assert (status, err) == (0, "")
    assert found["scores"] == sum(found["statuses"].values()) == found["statuses"]["ok"]
    assert found["scores"] % 16 == 0
    assert 0 < found["batch_p50_s"] <= found["batch_p99_s"]
    assert 0 < found["inside_s"] < found["batch_p99_s"]
    assert found["scores_per_s"] == pytest.approx(found["scores"] / found["seconds"])


def test_bench_of_a_reward_that_only_fails_says_why(run, inline, plugin, tmp_path):
    rows = file_of(tmp_path, [{"completion": "raise", "solution": "5"}])
    status, _, err = run("bench", "picky", "--plugin", plugin, "--data", rows, "--seconds", "0.1")
    assert status == 1
    assert "no score came: LookupError: no such thing" in err


@pytest.fixture(scope="module")
def server(plugin: str) -> Iterator[str]:
    """The URL of a server that wants a token."""
    process = subprocess.Popen(
        [*COMMAND, "serve", "--port", "0", "--workers", "1", "--plugin", plugin, "--log-level", "error"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "GRPO_API_TOKEN": "secret"},
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout:
        yield process.stdout.readline().split()[2]
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


def test_a_running_server_is_asked_instead(run, server, tmp_path, monkeypatch):
    path = file_of(tmp_path, ROWS)
    status, _, err = run("list", "--url", server)
    assert (status, err) == (
        1, f"error: {server}: the token is missing or wrong (send Authorization: Bearer $GRPO_API_TOKEN)\n",
    )  # fmt: skip
    monkeypatch.setenv("GRPO_API_TOKEN", "secret")
    status, out, _ = run("list", "picky", "--url", server, "--json")
    assert (status, json.loads(out)["scores"]) == (0, "samples")
    status, out, _ = run("score", path, "--rewards", "picky", "--url", server, "--json")
    report = json.loads(out)
    assert (status, report["rewards"][0]["mean"], report["rewards"][0]["seconds"]) == (0, 1.0, None)
    assert run("score", path, "--rewards", "pickyy", "--url", server)[0] == 2
    status, out, _ = run("bench", "countdown", "--url", server, "--seconds", "0.2", "--json")
    assert (status, json.loads(out)["inside_s"]) == (0, None)
    status, out, _ = run("test", "countdown", "--url", server, "--fuzz", "5", "--json")
    assert status == 0
    assert {check["name"] for check in json.loads(out)["checks"] if check["status"] == "skip"} == {
        "same in a new process"
    }


def test_lines_without_a_group_stay_together_for_a_reward_that_compares_them(run, server, tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_API_TOKEN", "secret")
    path = file_of(tmp_path, [{"completion": "c"}] * 300)
    _, out, err = run("score", path, "--rewards", "how_many", "--url", server, "--json")
    assert err == ""
    assert json.loads(out)["rewards"][0]["max"] == 300.0


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=PATIENCE_S)


def test_the_command_as_a_process(plugin, tmp_path):
    scored = command("score", file_of(tmp_path, ROWS), "--rewards", "picky", "--plugin", plugin, "--json")
    assert (scored.returncode, scored.stderr) == (0, LACKS)
    assert json.loads(scored.stdout)["samples"] == 5
    wrong = command("lsit")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("error: unknown command lsit: did you mean list?\nusage: grpo-reward serve")


def test_help_imports_nothing_heavy():
    program = (
        "import sys; from grpo_reward.__main__ import main\n"
        "for flag in ('--help', '--version'):\n"
        "    try:\n"
        "        main([flag])\n"
        "    except SystemExit as ended:\n"
        "        assert ended.code == 0\n"
        "heavy = {'rich', 'fastapi', 'httpx', 'sympy', 'pydantic_settings', 'grpo_reward.cli'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("usage: grpo-reward serve")
    assert ended.stdout.splitlines()[-1].startswith("grpo-reward ")
