"""Every series of the dashboards and alerts is in a scrape of the running services, with the labels they ask for."""

import re
import signal
import time

import httpx
import pytest

from tests.e2e.conftest import Stack
from tests.monitored import alert_queries, dashboard_queries, selectors, shown
from tests.processes import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

OF_PROMETHEUS = {"up"}
LABELS_OF_PROMETHEUS = {"job", "instance"}


@pytest.fixture(scope="module")
def scraped(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """What the three services show while a run goes on that has finished a step."""
    folder, port = tmp_path_factory.mktemp("monitored"), free_port()
    trainer = stack.start_trainer(folder / "run", folder / "log", "--server.port", port, "--max_steps", 500)
    try:
        deadline = time.monotonic() + 200
        while True:
            assert trainer.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            try:
                text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
            except httpx.TransportError:
                text = ""
            found = re.search(r"^grpo_trainer_step (\S+)", text, re.MULTILINE)
            if found and float(found[1]) >= 1:
                break
            time.sleep(0.2)
        scrapes = [
            text,
            *(httpx.get(f"{server.url}/metrics", trust_env=False).text for server in (stack.rollout, stack.reward)),
        ]
    finally:
        trainer.send_signal(signal.SIGTERM)
        trainer.wait(60)
    series: dict[str, set[str]] = {}
    for scrape in scrapes:
        for name, labels in shown(scrape).items():
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
