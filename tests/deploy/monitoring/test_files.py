"""Dashboards and alerts as files. Whether their series exist, a scrape of the running services says (tests/e2e)."""

import importlib.util
import itertools
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.monitored import MONITORING, alert_queries, dashboard_queries, needs_prometheus, selectors

ROOT = Path(__file__).parents[3]
QUERIES = dashboard_queries() | alert_queries()
DASHBOARD = json.loads((MONITORING / "dashboards/grpo-services.json").read_text())


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_is_promql_and_asks_for_something(name: str):
    assert selectors(QUERIES[name])


@pytest.mark.parametrize("query", ["rate(grpo_trainer_step[5m)", "sum by reward (x)", ""])
def test_wrong_promql_is_seen(query: str):
    with pytest.raises(ValueError, match=r".+"):
        selectors(query)


def test_the_dashboard_is_what_its_table_makes():
    spec = importlib.util.spec_from_file_location("make_dashboard", MONITORING / "make_dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    expected = "the table changed; run: python docker/monitoring/make_dashboard.py"
    assert module.FILE.read_text() == module.text(), expected


def test_panels_have_numbers_of_their_own_and_do_not_overlap():
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers) > 20
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    for place in places:
        assert place["x"] + place["w"] <= 24
    for one, other in itertools.combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)


def test_every_alert_says_what_is_wrong_and_how_bad_it_is():
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}


def test_every_alert_names_its_own_section_of_the_page():
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        # An anchor is a heading in small letters.
        headings = re.findall(r"^### (\w+)$", (ROOT / page).read_text(), re.MULTILINE)
        assert rule["alert"] in headings
        assert anchor == rule["alert"].lower()


ALERT_TESTS = Path(__file__).with_name("alerts.test.yaml")


@pytest.mark.processes
def test_each_alert_fires_when_it_should_and_only_then():
    """Prometheus's own rule tests."""
    promtool = needs_prometheus("promtool")
    done = subprocess.run(
        [promtool, "test", "rules", ALERT_TESTS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_alert_is_without_such_a_test():
    groups = yaml.safe_load(ALERT_TESTS.read_text())["tests"]
    fired = {case["alertname"] for group in groups for case in group["alert_rule_test"] if case["exp_alerts"]}
    assert fired == set(alert_queries())


def test_prometheus_reads_its_configuration(tmp_path: Path):
    """Its rule files lie where compose.yaml mounts them, so the copy names those of the source."""
    promtool, copy = needs_prometheus("promtool"), tmp_path / "prometheus.yml"
    text = (MONITORING / "prometheus.yml").read_text()
    assert "/etc/prometheus/alerts*.yaml" in text
    copy.write_text(text.replace("/etc/prometheus", str(MONITORING)))
    done = subprocess.run([promtool, "check", "config", copy], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "15 rules found" in done.stdout + done.stderr


STEP = {
    # A step of two minutes: the counters stand still for twelve scrapes, then move by all of it. Tokens: 9600 a step.
    'grpo_trainer_stage_seconds_total{run="r", stage="wait"}': [70, 90],
    'grpo_trainer_stage_seconds_total{run="r", stage="train"}': [50, 30],
    'grpo_trainer_tokens_total{run="r", instance="a"}': [9600, 9600],
    'grpo_trainer_sample_staleness_sum{run="r", instance="a"}': [256, 0],
    'grpo_trainer_sample_staleness_count{run="r", instance="a"}': [256, 256],
    'grpo_trainer_samples_dropped_total{run="r", reason="stale"}': [0, 0],
}
MIDDLES_OF_STEPS = ["5m10s", "5m50s", "6m30s", "20m10s", "21m", "22m50s", "40m"]
"""Before the window is full, and after."""


@pytest.mark.parametrize(
    ("panel", "shown"),
    [
        ("Who waits for whom, {{stage}} {{run}}", {'{run="r", stage="wait"}': 0.58, '{run="r", stage="train"}': 0.42}),
        ("Tokens trained on, {{run}}", {'{run="r"}': 80.0}),
        ("Staleness, {{instance}}", {'{run="r", instance="a"}': 1.0}),
        ("Samples dropped, {{reason}} {{run}}", {'{run="r", reason="stale"}': 0.0}),
    ],
)
def test_a_step_of_minutes_looks_the_same_at_every_moment(panel: str, shown: dict[str, float], tmp_path: Path):
    """A window that is shorter than a step sees nothing, and then the whole step in a few seconds."""
    series = {name: " ".join(f"{moved * step}x11" for step in range(20)) for name, (moved, _) in STEP.items()}
    check_panel(panel, series, dict.fromkeys(MIDDLES_OF_STEPS, shown), tmp_path)


def test_a_run_that_begins_to_wait_longer_is_seen_within_the_window(tmp_path: Path):
    levels = {name: [0] for name in STEP}
    for name, (before, after) in STEP.items():
        for step in range(20):
            levels[name].append(levels[name][-1] + (before if step < 8 else after))
    series = {name: " ".join(f"{level}x11" for level in reached) for name, reached in levels.items()}
    both = ['{run="r", stage="wait"}', '{run="r", stage="train"}']
    shown = {"15m": dict(zip(both, (0.58, 0.42), strict=True)), "35m": dict(zip(both, (0.75, 0.25), strict=True))}
    check_panel("Who waits for whom, {{stage}} {{run}}", series, shown, tmp_path)


def test_the_first_samples_that_are_dropped_are_seen(tmp_path: Path):
    """Their reason is there from 0 on: Prometheus does not see how a series came to its first value."""
    dropped = 'grpo_trainer_samples_dropped_total{run="r", reason="%s"}'
    series = {dropped % "error": "0x11 80x100", dropped % "stale": "0x111"}
    shown = {'{run="r", reason="error"}': 80.0, '{run="r", reason="stale"}': 0.0}
    check_panel("Samples dropped, {{reason}} {{run}}", series, {"4m": shown}, tmp_path, to=10)


def check_panel(
    panel: str, series: dict[str, str], shown: dict[str, dict[str, float]], folder: Path, *, to: float = 0.01
) -> None:
    """Let Prometheus answer a panel from series that are scraped every ten seconds: moment → labels → value.

    Values are rounded `to`: an increase is one that Prometheus extrapolates to the ends of the window.
    """
    expression = f"round({dashboard_queries()[f'grpo-services: {panel}']}, {to})"
    case = {
        "interval": "10s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": moment,
                "exp_samples": [{"labels": labels, "value": value} for labels, value in values.items()],
            }
            for moment, values in shown.items()
        ],
    }
    (folder / "panel.yaml").write_text(yaml.safe_dump({"evaluation_interval": "10s", "tests": [case]}))
    command = [needs_prometheus("promtool"), "test", "rules", folder / "panel.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_would_see_a_wrong_rule(tmp_path: Path):
    promtool, copy = needs_prometheus("promtool"), tmp_path / "alerts.yaml"
    copy.write_text((MONITORING / "alerts.yaml").read_text().replace("== 1", "== 1 by", 1))
    assert (
        subprocess.run([promtool, "check", "rules", copy], capture_output=True, timeout=60, check=False).returncode != 0
    )
