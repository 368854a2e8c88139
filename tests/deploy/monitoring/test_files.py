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
    assert "13 rules found" in done.stdout + done.stderr


def test_promtool_would_see_a_wrong_rule(tmp_path: Path):
    promtool, copy = needs_prometheus("promtool"), tmp_path / "alerts.yaml"
    copy.write_text((MONITORING / "alerts.yaml").read_text().replace("== 1", "== 1 by", 1))
    assert (
        subprocess.run([promtool, "check", "rules", copy], capture_output=True, timeout=60, check=False).returncode != 0
    )
