"""The chart's copies of alerts and dashboards are those of docker/monitoring, and arrive where they are looked for."""

import json
from pathlib import Path

import pytest
import yaml

from .rendering import CHART, ROOT, find, merged, objects_of, render, values_of

SOURCE = ROOT / "docker" / "monitoring"


def _files(folder: Path, pattern: str) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.glob(pattern)}


def test_the_copies_are_equal() -> None:
    """A chart reads nothing outside its folder. `cp` them again when they differ."""
    assert _files(CHART / "files" / "dashboards", "*.json") == _files(SOURCE / "dashboards", "*.json")
    assert _files(CHART / "files", "alerts.yaml") == _files(SOURCE, "alerts.yaml")


def test_each_dashboard_is_a_config_map_with_the_label() -> None:
    maps = [
        item
        for item in objects_of("sixty-four-gpus")
        if item["kind"] == "ConfigMap" and item["metadata"]["labels"].get("grafana_dashboard") == "1"
    ]
    rendered = {name: text for item in maps for name, text in item["data"].items()}
    assert rendered.keys() == _files(CHART / "files" / "dashboards", "*.json").keys()
    for name, text in rendered.items():
        assert json.loads(text) == json.loads((CHART / "files" / "dashboards" / name).read_text())


def test_the_alerts_are_a_rule() -> None:
    rules = [item for item in objects_of("sixty-four-gpus") if item["kind"] == "PrometheusRule"]
    files = _files(CHART / "files", "alerts.yaml")
    assert [rule["spec"] for rule in rules] == [yaml.safe_load(text) for text in files.values()]


@pytest.mark.parametrize("base", ["", "https://docs.example/grpo"])
def test_what_an_alert_asks_for_is_a_link_when_there_is_a_base(base: str) -> None:
    given = {"metrics": {"prometheusRule": {"enabled": True, "runbookBaseUrl": base}}}
    groups = find(render(merged(values_of("small"), given)), "PrometheusRule")["spec"]["groups"]
    source = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    rules, as_written = ([rule for group in both for rule in group["rules"]] for both in (groups, source))
    assert len(rules) == len(as_written)
    for rule, written in zip(rules, as_written, strict=True):
        page = f"docs/monitoring.md#{rule['alert'].lower()}"
        assert rule["annotations"].pop("runbook_url") == (f"{base}/{page}" if base else page)
        del written["annotations"]["runbook_url"]
        assert rule == written


def test_every_server_is_scraped_once() -> None:
    objects = objects_of("sixty-four-gpus")
    services = [item for item in objects if item["kind"] == "Service"]
    for component in ("rollout", "reward", "trainer"):
        wanted = find(objects, "ServiceMonitor", component)["spec"]["selector"]["matchLabels"]
        assert find(objects, "ServiceMonitor", component)["spec"]["jobLabel"] == "app.kubernetes.io/component"
        port = find(objects, "ServiceMonitor", component)["spec"]["endpoints"][0]["port"]
        chosen = [
            service["metadata"]["name"]
            for service in services
            if wanted.items() <= service["metadata"]["labels"].items()
            and port in {one["name"] for one in service["spec"]["ports"]}
        ]
        assert len(chosen) == 1, (component, chosen)


def test_the_example_has_the_label_that_kube_prometheus_stack_selects_by() -> None:
    found = [item for item in objects_of("sixty-four-gpus") if item["kind"] in ("ServiceMonitor", "PrometheusRule")]
    assert len(found) == 4
    assert {item["metadata"]["labels"]["release"] for item in found} == {"kube-prometheus-stack"}


def test_the_leaders_of_engines_over_nodes_are_scraped_as_pods() -> None:
    """LeaderWorkerSet's own headless service has no port to scrape."""
    objects = render(merged(values_of("engine-over-nodes"), {"metrics": {"serviceMonitor": {"enabled": True}}}))
    monitor = find(objects, "PodMonitor", "rollout")
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == "http"
    assert monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] == "rollout"


def test_every_scrape_names_the_run() -> None:
    """Two releases in one Prometheus: a young run would be taken for one that lags behind the other."""
    engines = render(merged(values_of("engine-over-nodes"), {"metrics": {"serviceMonitor": {"enabled": True}}}))
    for objects in (objects_of("sixty-four-gpus"), engines):
        monitors = [item["spec"] for item in objects if item["kind"] in ("ServiceMonitor", "PodMonitor")]
        endpoints = [one for spec in monitors for one in spec.get("endpoints", spec.get("podMetricsEndpoints"))]
        names = [one["relabelings"] for one in endpoints]
        assert names == [[{"targetLabel": "run", "replacement": "team-a/trial"}]] * 3
