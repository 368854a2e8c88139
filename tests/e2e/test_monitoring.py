"""Dashboards and alerts against the running services: the series are there, and Prometheus answers every panel."""

import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from tests.e2e.conftest import Stack
from tests.monitored import MONITORING, alert_queries, dashboard_queries, needs_prometheus, selectors, shown
from tests.processes import Service, free_port, service

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400), pytest.mark.xdist_group("stack")]

OF_PROMETHEUS = {"up"}
LABELS_OF_PROMETHEUS = {"job", "instance", "run"}
EMPTY_IN_A_RUN_THAT_IS_WELL = {
    # Counted from the first worker that dies.
    "grpo-services: Workers replaced, {{cause}}",
}
PENDING_WITH_A_MODEL_THAT_NEVER_ENDS = {"GrpoCompletionsCutOff"}
"""Its weights are random; half an hour of that would be an alert."""


@dataclass(frozen=True)
class Running:
    """The `GET /metrics` of each service while a trainer runs, by job."""

    urls: dict[str, str]

    def text(self, job: str) -> str:
        return httpx.get(f"{self.urls[job]}/metrics", trust_env=False, timeout=10.0).text


@pytest.fixture(scope="module")
def running(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The three services, with a run that goes on and has finished a step."""
    folder, port = tmp_path_factory.mktemp("monitored"), free_port()
    running = Running({"reward": stack.reward.url, "rollout": stack.rollout.url, "trainer": f"http://127.0.0.1:{port}"})
    # With a reference model, so that there is a KL to show.
    flags = ("--server.port", port, "--max_steps", 5000, "--algorithm.beta", 0.001)
    trainer = stack.start_trainer(folder / "run", folder / "log", *flags)
    try:
        deadline = time.monotonic() + 200
        while True:
            assert trainer.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            try:
                text = running.text("trainer")
            except httpx.TransportError:
                text = ""
            found = re.search(r"^grpo_trainer_step (\S+)", text, re.MULTILINE)
            if found and float(found[1]) >= 1:
                break
            time.sleep(0.2)
        yield running
        assert trainer.poll() is None, (folder / "log").read_text()
    finally:
        trainer.send_signal(signal.SIGTERM)
        trainer.wait(60)


@pytest.fixture(scope="module")
def scraped(running: Running) -> dict[str, set[str]]:
    """Series → labels, of all three."""
    series: dict[str, set[str]] = {}
    for job in running.urls:
        for name, labels in shown(running.text(job)).items():
            series.setdefault(name, set()).update(labels)
    return series


@pytest.mark.parametrize("kind", ["dashboards", "alerts"])
def test_nothing_is_asked_for_that_no_service_shows(scraped: dict[str, set[str]], kind: str):
    queries = dashboard_queries() if kind == "dashboards" else alert_queries()
    missing = {}
    for name, query in queries.items():
        for series, labels in selectors(query):
            if series in OF_PROMETHEUS:
                continue
            if series not in scraped:
                missing[name] = series
            elif scraped[series] and not labels - LABELS_OF_PROMETHEUS <= scraped[series]:
                missing[name] = f"{series}{sorted(labels)}"
    assert not missing


def test_a_series_that_is_not_there_would_be_seen(scraped: dict[str, set[str]]):
    assert "vllm:gpu_cache_usage_perc" not in scraped, "an old name of vLLM's, which dashboards still carry"
    assert len(scraped) > 50


@pytest.fixture(scope="module")
def prometheus(running: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A real one with the configuration of compose.yaml; only hosts, paths and the interval are the test's."""
    binary, folder, port = needs_prometheus("prometheus"), tmp_path_factory.mktemp("prometheus"), free_port()
    settings = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    settings["rule_files"] = [str(MONITORING / "alerts.yaml")]
    for job in settings["scrape_configs"]:
        (group,) = job["static_configs"]
        group["targets"] = [running.urls[job["job_name"]].removeprefix("http://")]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    command = [
        binary, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with service(command, folder / "log", port=port) as server:
        wait_for_scrapes(server, folder / "log")
        yield server


def wait_for_scrapes(server: Service, log: Path) -> None:
    """Until each job was scraped four times, so that rates can be told."""
    deadline = time.monotonic() + 60
    while True:
        assert server.process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            counts = {one["metric"]["job"]: int(one["value"][1]) for one in ask(server, "count_over_time(up[1m])")}
        except (httpx.TransportError, httpx.HTTPStatusError):
            counts = {}
        if len(counts) == 3 and min(counts.values()) >= 4:
            return
        time.sleep(0.5)


def ask(server: Service, query: str) -> list[dict]:
    answer = httpx.get(f"{server.url}/api/v1/query", params={"query": query}, trust_env=False, timeout=10.0)
    assert answer.status_code != 400, answer.text
    return answer.raise_for_status().json()["data"]["result"]


def test_prometheus_gets_every_service_and_names_the_run(prometheus: Service):
    """Within a minute: a single scrape may be late on a busy machine."""
    seen = ask(prometheus, "max_over_time(up[1m])")
    up = {one["metric"]["job"]: (one["metric"]["run"], one["value"][1]) for one in seen}
    assert up == dict.fromkeys(("reward", "rollout", "trainer"), ("compose", "1"))


def test_every_panel_shows_something_of_a_run_that_is_well(prometheus: Service):
    """A scrape that is late takes the series of its service away until the next one, so empty ones are asked again."""
    deadline, empty = time.monotonic() + 30, dashboard_queries()
    while True:
        empty = {name: query for name, query in empty.items() if not ask(prometheus, query)}
        if empty.keys() <= EMPTY_IN_A_RUN_THAT_IS_WELL:
            return
        assert time.monotonic() < deadline, empty
        time.sleep(0.5)


def test_every_alert_is_evaluated_and_none_fires_in_a_run_that_is_well(prometheus: Service):
    """One may be pending for a moment, after a scrape that was late."""
    deadline = time.monotonic() + 30
    while True:
        answer = httpx.get(f"{prometheus.url}/api/v1/rules", trust_env=False, timeout=10.0).raise_for_status().json()
        rules = [rule for group in answer["data"]["groups"] for rule in group["rules"]]
        assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []
        pending = {rule["name"] for rule in rules if rule["state"] == "pending"}
        evaluated = rules and all(rule["health"] != "unknown" for rule in rules)
        if evaluated and pending <= PENDING_WITH_A_MODEL_THAT_NEVER_ENDS:
            break
        assert time.monotonic() < deadline, rules
        time.sleep(0.5)
    assert {rule["name"] for rule in rules} == set(alert_queries())
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}
