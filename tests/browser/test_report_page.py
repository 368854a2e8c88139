"""The report of a run in a real browser: it draws its charts, complains about nothing and fits a phone."""

from pathlib import Path

import pytest

from grpo_trainer.observe.completions import CompletionLog
from grpo_trainer.observe.report import write_report
from grpo_trainer.observe.run_files import COMPLETIONS_FILE
from tests.trainer.made_episodes import saying

from .conftest import DESKTOP, PHONE, sync_api
from .made_run import HOSTILE, make_groups, write_metrics

pytestmark = pytest.mark.browser

expect = sync_api.expect


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("run")
    write_metrics(run_dir, steps=120)
    log = CompletionLog(run_dir / COMPLETIONS_FILE, resumed_step=None, part_mib=256)
    for step in (1, 2, 5, 10, 120):
        groups = make_groups(step)
        groups[0].episodes[0] = saying(groups[0].episodes[0], HOSTILE)
        groups[0].episodes[0].total = 2.0  # the best one is always shown
        log.write(step, groups)
    log.close()
    return write_report(run_dir)


@pytest.mark.parametrize(("name", "size"), [("desktop", DESKTOP), ("phone", PHONE)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_loads_and_fits(report: Path, visit, screenshots: Path, name: str, size: dict, scheme: str):
    seen = visit(report.as_uri(), size, color_scheme=scheme)
    charts = seen.page.locator("[data-chart]")
    expect(charts.locator("svg.main-svg").first).to_be_visible()
    assert seen.page.locator("[data-chart] .plot-container").count() == charts.count()
    assert seen.page.evaluate("window.hacked") is None
    assert HOSTILE.replace("\ud83d", "?") in seen.page.inner_text("#completions")
    assert seen.fits()
    seen.page.screenshot(path=screenshots / f"report-{name}-{scheme}.png", full_page=True)
    assert seen.complaints == []
