"""The report: bounded, self-contained, safe against what a model writes, and sensible when things are missing."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from grpo_trainer.observe.curves import MAX_POINTS, read_curves
from grpo_trainer.observe.report import main, write_report
from grpo_trainer.observe.report_charts import make_charts
from grpo_trainer.observe.report_samples import MAX_STEPS, is_landmark, read_samples, shorten, spread
from grpo_trainer.observe.thinned import ThinnedSeries, trailing_mean

ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(1)>&\u2028"


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def metrics_of(step: int, **more: float) -> dict[str, Any]:
    return {
        "step": step,
        "reward": step / 10,
        "rewards/countdown/mean": 0.5,
        "accuracy": 0.25,
        "completions/mean_length": 50,
        "completions/min_length": 10,
        "completions/max_length": 99,
        "grad_norm": 1.0,
        "step_time": 3.0,
        "time/train_s": 1.5,
        "time/wait_s": 1.0,
        **more,
    }


def completion_of(step: int, *, group: int = 0, index: int = 0, total: float | None = 1.0, text: str = "text") -> dict:
    status = (
        {"score": total, "status": "ok"}
        if total is not None
        else {"score": None, "status": "timeout", "detail": "10 s"}
    )
    return {
        "step": step,
        "group": group,
        "index": index,
        "prompt": f"prompt {step}-{group}",
        "completion": text,
        "rewards": {"countdown": status},
        "total": total,
        "advantage": 0.5,
        "finish_reason": "stop",
        "num_tokens": 7,
    }


class Page(HTMLParser):
    """What a browser makes of a page: its elements, its visible text, its scripts."""

    def __init__(self, path: Path):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.scripts, self._in = "", [], ""
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._in = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self._in = ""

    def handle_data(self, data):
        if self._in == "script":
            attributes, source = self.scripts[-1]
            self.scripts[-1] = (attributes, source + data)
        elif self._in != "style":
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)

    @property
    def figures(self) -> dict[str, Any]:
        return next(json.loads(source) for attributes, source in self.scripts if attributes.get("id") == "figures")


def report_of(run_dir: Path) -> Page:
    return Page(write_report(run_dir))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "demo"
    folder.mkdir()
    metrics = [{"step": 0, "eval_accuracy": 0.2, "eval_greedy": 0.3, "step_time": 2.0, "time/eval_s": 1.5}]
    metrics += [metrics_of(step) for step in range(1, 20)]
    metrics += [metrics_of(20, eval_accuracy=0.5, eval_greedy=0.25)]
    write_lines(folder / "metrics.jsonl", metrics)
    completions = [
        completion_of(
            step, group=group, index=index, total=float(index == group), text=f"answer {step}-{group}-{index}"
        )
        for step in range(1, 21)
        for group in range(2)
        for index in range(3)
    ]
    write_lines(folder / "completions.jsonl", completions)
    return folder


def test_the_page_shows_the_run(run_dir: Path):
    (run_dir / "run.yaml").write_text("max_steps: 20\nseed: 7\nmodel: {name_or_path: tiny}\nreward: {api_key: hush}\n")
    page = report_of(run_dir)
    text = " ".join(page.text.split())
    assert "20.0% → 50.0%" in text
    assert "+30.0 points" in text
    assert "30.0% → 25.0%" in text
    assert "-5.0 points" in text
    assert "20 of 20" in text
    assert "hush" not in text
    assert "api_key: '***'" in text
    for heading in ("Reward", "Accuracy", "Completion length", "Seconds per stage", "Completions", "Step 1", "Step 20"):
        assert heading in text
    assert "answer 20-0-0" in text
    assert [name for name, _ in page.elements if name == "h1"] == ["h1"]


def test_missing_measurements_are_said_and_left_out(run_dir: Path):
    page = report_of(run_dir)
    assert "None of these was measured." in page.text, "no KL, no entropy, no clipping"
    assert "No staleness was measured." in page.text
    assert not {"policy", "staleness", "mismatch"} & page.figures.keys()
    assert {"reward", "accuracy", "lengths", "time", "optimizer"} <= page.figures.keys()


def test_evaluations_are_points_at_their_steps(run_dir: Path):
    traces = {trace["name"]: trace for trace in report_of(run_dir).figures["accuracy"]["data"]}
    assert traces["held out, sampled"]["x"] == [0, 20]
    assert traces["held out, sampled"]["y"] == [0.2, 0.5]
    assert traces["training batches"]["x"][0] == 1, "a step without a batch has no accuracy, not 0"


def test_stages_stack_up_to_the_step(run_dir: Path):
    bars = {trace["name"]: trace for trace in report_of(run_dir).figures["time"]["data"]}
    assert set(bars) == {"wait", "train", "eval", "other"}
    assert [bars[name]["y"][1] for name in ("wait", "train", "eval", "other")] == [1.0, 1.5, 0.0, 0.5]
    assert all(trace["x"] == list(range(21)) for trace in bars.values())


def test_plotly_accepts_every_chart(run_dir: Path):
    everything = {"kl": 0.1, "entropy": 1.0, "loss": 0.1, "learning_rate": 1e-6, "frac_reward_zero_std": 0.5}
    everything |= {"teacher/kl": 0.3, "aux_loss": 2.1, "chord/logprob": -0.4}
    everything |= {f"staleness/{name}": 1 for name in ("mean", "max")} | {"samples/dropped_stale": 3}
    everything |= {f"sampling/sampling_logp_difference/{name}": 0.01 for name in ("mean", "max")}
    everything |= {f"sampling/importance_sampling_ratio/{name}": 1.0 for name in ("mean", "min", "max")}
    everything |= {f"clip_ratio/{name}_mean": 0.01 for name in ("low", "high", "region")}
    everything |= {f"canary/logprob_difference_{name}": 0.01 for name in ("mean", "max")}
    everything |= {"completions/clipped_ratio": 0.1, "completions/mean_terminated_length": 40}
    write_lines(run_dir / "metrics.jsonl", [metrics_of(step, **everything) for step in range(1, 60)])
    charts = make_charts(read_curves(run_dir))
    assert len(charts) == 8
    for chart in charts:
        assert chart.figure is not None, chart.title
        go.Figure(chart.figure)
    policy = next(chart.figure for chart in charts if chart.id == "policy")
    assert {"entropy", "load balancing of experts", "of demonstrations"} <= {trace["name"] for trace in policy["data"]}


def test_a_page_needs_no_network_and_runs_only_its_own_scripts(run_dir: Path):
    page = report_of(run_dir)
    for _, attributes in page.elements:
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    policy = next(a["content"] or "" for n, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    nonce = re.search(r"script-src 'nonce-([\w-]+)'", policy)
    assert nonce
    assert "default-src 'none'" in policy
    code = [attributes for attributes, _ in page.scripts if attributes.get("type") != "application/json"]
    assert [attributes.get("nonce") for attributes in code] == [nonce[1]] * 2
    assert f"nonce-{nonce[1]}" not in write_report(run_dir).read_text(), "a new one every time"


def test_what_a_model_or_a_name_says_stays_text(run_dir: Path):
    clean = report_of(run_dir)
    hostile = [completion_of(1, index=index, total=index, text=f"{ATTACK}{index}") for index in range(2)]
    hostile[0]["prompt"] = [{"role": ATTACK, "content": ATTACK}]
    hostile[0]["rewards"] = {ATTACK: {"score": None, "status": "error", "detail": ATTACK}}
    hostile[0]["finish_reason"] = ATTACK
    write_lines(run_dir / "completions.jsonl", hostile)
    write_lines(run_dir / "metrics.jsonl", [metrics_of(step, **{f"rewards/{ATTACK}/mean": 1.0}) for step in (1, 2)])
    (run_dir / "run.yaml").write_text(json.dumps({"max_steps": ATTACK, "seed": ATTACK}))
    page = report_of(run_dir)
    assert page.count("script") == clean.count("script") == 3
    assert page.count("img") == 0
    assert f"{ATTACK}1" in page.text
    names = [trace["name"] for trace in page.figures["reward"]["data"]]
    assert [name for name in names if "alert" in name and "<" not in name], "plotly reads tags in names"


def test_a_run_without_steps_says_so(tmp_path: Path):
    page = report_of(tmp_path)
    assert "No step has finished yet" in page.text
    assert page.count("script") == 0
    write_lines(tmp_path / "metrics.jsonl", [])
    assert "No step has finished yet" in report_of(tmp_path).text


def test_a_run_without_completions_says_so(tmp_path: Path):
    write_lines(tmp_path / "metrics.jsonl", [metrics_of(1)])
    assert "No completions were written" in report_of(tmp_path).text


def test_torn_and_broken_files_still_make_a_page(run_dir: Path):
    for name in ("metrics.jsonl", "completions.jsonl"):
        with (run_dir / name).open("a") as file:
            file.write('{"step": 21, broken}\n{"step": 22, "rew')
    (run_dir / "summary.json").write_text("{")
    (run_dir / "run.yaml").write_text(": [")
    assert "Step 20" in report_of(run_dir).text


def test_unscored_samples_say_why(run_dir: Path):
    samples = [completion_of(1, index=0, total=None), completion_of(1, index=1, total=None)]
    write_lines(run_dir / "completions.jsonl", samples)
    text = " ".join(report_of(run_dir).text.split())
    assert "2 completions, 2 without a score" in text
    assert "countdown timeout" in text
    assert "countdown: 10 s" in text
    assert "None could be scored." in text
    assert "total not scored" in text


def test_best_and_worst_of_the_groups_that_differ_most(run_dir: Path):
    samples = [
        completion_of(3, group=group, index=index, total=total, text=f"{group}-{index}")
        for group, totals in enumerate([[0.5, 0.5], [0.1, None, 0.9], [0.0, 1.1], [0.4, 0.5]])
        for index, total in enumerate(totals)
    ]
    write_lines(run_dir / "completions.jsonl", samples)
    [step] = read_samples(run_dir)
    assert step.step == 3
    shown = [(prompt.best.text, prompt.worst.text if prompt.worst else None) for prompt in step.prompts]
    assert shown == [("2-1", "2-0"), ("1-2", "1-0")]
    assert step.prompts[1].num_unscored == 1


def test_steps_are_spread_like_a_logarithm_with_the_first_and_the_last(tmp_path: Path):
    assert [step for step in range(1, 300) if is_landmark(step)] == [1, 2, 5, 10, 20, 50, 100, 200]
    write_lines(tmp_path / "completions.jsonl", [completion_of(step) for step in range(3, 1235)])
    steps = [shown.step for shown in read_samples(tmp_path)]
    assert len(steps) == MAX_STEPS
    assert (steps[0], steps[-1]) == (3, 1234)
    assert steps == sorted(steps)
    assert spread([1, 2, 5], 7) == [1, 2, 5]


def test_older_parts_of_the_completions_are_read_first(tmp_path: Path):
    for name, steps in (("-part-0001", (1, 2)), ("-part-0002", (5,)), ("", (7,))):
        write_lines(tmp_path / f"completions{name}.jsonl", [completion_of(step) for step in steps])
    assert [shown.step for shown in read_samples(tmp_path)] == [1, 2, 5, 7]


def test_a_long_run_stays_a_small_page(tmp_path: Path):
    num_steps = 5000
    write_lines(tmp_path / "metrics.jsonl", [metrics_of(step) for step in range(1, num_steps + 1)])
    long_text = "x" * 100_000 + "the end"
    write_lines(
        tmp_path / "completions.jsonl",
        [completion_of(step, index=index, total=index, text=long_text) for step in (1, 2, 5, 10) for index in range(8)],
    )
    path = write_report(tmp_path)
    page = Page(path)
    own = path.stat().st_size - max(len(source) for _, source in page.scripts)
    assert own < 500_000
    assert "the end" in page.text
    for figure in page.figures.values():
        for trace in figure["data"]:
            assert len(trace["x"]) == len(trace["y"]) <= MAX_POINTS
            assert trace["x"][-1] > num_steps * 0.99


def test_long_texts_keep_their_end():
    text = shorten("a" * 5000 + "<answer>1</answer>", limit=300)
    assert text.endswith("<answer>1</answer>")
    assert "4,718 characters left out" in text
    assert shorten("short") == "short"


def test_merged_points_keep_means_and_extremes():
    mean, peak = ThinnedSeries(4), ThinnedSeries(4, "max")
    values = [1.0, 3.0, 5.0, 7.0, 9.0, 100.0, 0.0]
    for step, value in enumerate(values, start=1):
        mean.add(step, value)
        peak.add(step, value)
    assert mean.per_point == 2
    assert mean.steps == [1.5, 3.5, 5.5, 7.0]
    assert mean.values == [2.0, 6.0, 54.5, 0.0]
    assert mean.last_is_partial
    assert peak.values == [3.0, 7.0, 100.0, 0.0]


def test_merging_again_and_again_keeps_the_overall_mean():
    series = ThinnedSeries(8)
    values = [float(value % 17) for value in range(1024)]
    for step, value in enumerate(values):
        series.add(step, value)
    assert len(series) <= 8
    assert sum(series.values) / len(series) == pytest.approx(sum(values) / len(values))


def test_a_trailing_mean():
    assert trailing_mean([1.0, 3.0, 5.0, 7.0], 2) == [1.0, 2.0, 4.0, 6.0]


def test_the_command_writes_the_page_and_names_what_is_wrong(run_dir: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(run_dir)]) == 0
    assert capsys.readouterr().out.strip() == str(run_dir / "report.html")
    assert main([str(run_dir / "nowhere")]) == 1
    assert "nowhere is not a folder" in capsys.readouterr().err
    assert main([str(run_dir), "--output", str(run_dir / "no" / "x.html")]) == 1
    assert "cannot be written" in capsys.readouterr().err
