"""The live page in a real browser: it loads, follows the run, survives a restart, fits a phone, and stays quiet."""

import re
from pathlib import Path

import pytest

from grpo_trainer.config.observing import ServerConfig
from grpo_trainer.observe.live_groups import MAX_COMPLETIONS
from grpo_trainer.observe.run_status import RunStatus
from grpo_trainer.observe.server import StatusServer, serve_status
from tests.trainer.made_episodes import saying

from .conftest import NETWORK, PHONE, sync_api
from .made_run import HOSTILE, MAX_STEPS, advance, make_groups, make_metrics, show_servers, write_metrics

pytestmark = pytest.mark.browser

expect = sync_api.expect
EVERYWHERE = "0.0.0.0"  # noqa: S104


def test_it_shows_the_run(running: StatusServer, visit, screenshots: Path):
    seen = visit(f"{running.url}/")
    page = seen.page
    expect(page.locator("#connection")).to_have_text("live")
    expect(page.locator("#steps")).to_have_text(f"step 40 of {MAX_STEPS}")
    expect(page.locator("#left")).to_contain_text("left")
    expect(page.locator("#stage")).to_contain_text("waiting for samples")
    expect(page.locator("#tiles")).to_contain_text("Held out, greedy")
    for title in ("Reward", "Accuracy", "Seconds per stage", "Staleness"):
        chart = page.get_by_role("img", name=re.compile(f"^{title} over the steps; last values: .*[0-9]"))
        expect(chart).to_be_visible()
        expect(chart.locator("path")).not_to_have_count(0)
    expect(page.locator("#waits-words")).to_contain_text(
        re.compile(r"The trainer waits \d+\s% of the time for samples")
    )
    expect(page.locator("#replicas")).to_contain_text("a push was cut off")
    expect(page.locator("#replicas tr")).to_have_count(4)
    teacher = re.compile("teacher:8010 .teacher of math and code.*no route.*no answer")
    expect(page.locator("#replicas tr").last).to_have_text(teacher)
    expect(page.locator("#replicas-words")).to_have_text("1 of 2 rollout servers have the current weights")
    expect(page.locator("#left-out")).to_have_text(
        "2 samples left out: reward timed outreward countdown: 4 of 24 scores missing in the last step: timed out"
    )
    expect(page.locator("#warnings li")).to_contain_text("gets no more traffic")
    assert page.title().startswith(f"40/{MAX_STEPS} · ")
    assert seen.fits()
    page.screenshot(path=screenshots / "live-desktop.png", full_page=True)
    assert seen.complaints == []


def test_it_follows_the_run_without_being_loaded_again(running: StatusServer, status: RunStatus, visit):
    seen = visit(f"{running.url}/")
    expect(seen.page.locator("#steps")).to_have_text(f"step 40 of {MAX_STEPS}")
    seen.page.evaluate("window.sameDocument = true")
    advance(status, [41, 42])
    status.enter_stage("train")
    expect(seen.page.locator("#steps")).to_have_text(f"step 42 of {MAX_STEPS}")
    expect(seen.page.locator("#stage")).to_contain_text("training")
    expect(seen.page.locator("#completions-words")).to_contain_text("Step 42")
    assert seen.page.evaluate("state.curves['reward'].x.slice(-3)") == [40, 41, 42]
    assert seen.page.evaluate("window.sameDocument")
    assert seen.complaints == []


def test_its_curves_stay_those_of_the_trainer_however_long_the_run(running: StatusServer, status: RunStatus, visit):
    """The page thins by itself what it is told step by step; a page that is opened later gets the trainer's points."""
    early = visit(f"{running.url}/")
    expect(early.page.locator("#connection")).to_have_text("live")
    for first in range(41, 1241, 200):
        for step in range(first, first + 200):
            status.step_done(step, make_metrics(step), seconds_per_stage={})
        expect(early.page.locator("#steps")).to_have_text(f"step {first + 199} of {MAX_STEPS}")
    late = visit(f"{running.url}/")
    expect(late.page.locator("#connection")).to_have_text("live")
    for name in ("reward", "grad_norm", "time/wait_s", "eval_greedy"):
        curve = f"(({{x, y, counts, per}}) => ({{x, y, counts, per}}))(state.curves['{name}'])"
        followed, told = early.page.evaluate(curve), late.page.evaluate(curve)
        assert (followed["per"], followed["counts"]) == (told["per"], told["counts"])
        assert followed["x"] == pytest.approx(told["x"], abs=0.11)
        assert followed["y"] == pytest.approx(told["y"], rel=1e-3, abs=1e-6)
    assert sum(followed["counts"]) == 31, "evaluations at every 40th step"


def test_a_restarted_trainer_is_found_again(tmp_path: Path, visit):
    write_metrics(tmp_path, steps=25)
    status = RunStatus("resumed", max_steps=MAX_STEPS, heartbeat_bound_s=60.0)
    advance(status, range(1, 31))
    with serve_status(status, ServerConfig(port=0)) as first:
        seen = visit(f"{first.url}/")
        page = seen.page
        expect(page.locator("#steps")).to_have_text(f"step 30 of {MAX_STEPS}")
        status.ended("RunError: the reward server could not score")
    expect(page.locator("#connection")).to_have_text("run ended")
    expect(page.locator("#ending")).to_have_text(
        "The run stopped at step 30: RunError: the reward server could not score"
    )
    resumed = RunStatus("resumed", max_steps=MAX_STEPS, heartbeat_bound_s=60.0, step=25)
    resumed.history.restore(tmp_path, through_step=25)
    show_servers(resumed)
    with serve_status(resumed, ServerConfig(port=first.port)):
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#ending")).to_be_hidden()
        expect(page.locator("#steps")).to_have_text(f"step 25 of {MAX_STEPS}")
        assert page.evaluate("state.curves['reward'].x.at(-1)") == 25, "steps that were lost are not shown"
        advance(resumed, [26])
        expect(page.locator("#steps")).to_have_text(f"step 26 of {MAX_STEPS}")
        assert page.evaluate("state.curves['reward'].x.slice(-2)") == [25, 26]
    assert [text for text in seen.complaints if not NETWORK.search(text)] == []


def test_a_killed_trainer_is_told_from_one_that_ended(running: StatusServer, visit):
    seen = visit(f"{running.url}/")
    expect(seen.page.locator("#connection")).to_have_text("live")
    seen.page.context.set_offline(True)
    seen.page.evaluate("lost()")  # what the browser calls when the connection breaks
    expect(seen.page.locator("#connection")).to_have_text("trainer gone · trying again")
    seen.page.context.set_offline(False)
    expect(seen.page.locator("#connection")).to_have_text("live")


def test_a_trainer_that_refuses_is_told_from_one_that_is_gone(running: StatusServer, visit):
    seen = visit(f"{running.url}/")
    expect(seen.page.locator("#connection")).to_have_text("live")
    seen.page.route("**/events", lambda route: route.fulfill(status=503, body="{}"))
    seen.page.evaluate("lost()")
    expect(seen.page.locator("#connection")).to_have_text("too many pages or no token · trying again")
    seen.page.unroute("**/events")
    expect(seen.page.locator("#connection")).to_have_text("live")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(running: StatusServer, visit, screenshots: Path, scheme: str):
    seen = visit(f"{running.url}/", PHONE, color_scheme=scheme, has_touch=True)
    expect(seen.page.locator("#groups article")).to_have_count(3)
    assert seen.fits()
    seen.page.screenshot(path=screenshots / f"live-phone-{scheme}.png", full_page=True)
    assert seen.complaints == []


def test_long_words_do_not_make_it_wide(visit):
    status = RunStatus("x" * 300, max_steps=2, heartbeat_bound_s=60.0)
    metrics = {f"rewards/{'y' * 200}{index}/mean": 0.5 for index in range(3)}
    groups = make_groups(1)
    groups[0].episodes[0] = saying(groups[0].episodes[0], "z" * 1_000_000)
    status.step_done(1, {**make_metrics(1), **metrics}, seconds_per_stage={}, groups=groups)
    status.show("warnings", lambda: [{"level": "error", "text": "w" * 600, "count": 1, "time_s": 0}])
    url = "http://" + "u" * 200
    replica = {"url": url, "live": True, "member": False, "state": "stale", "version": 1, "reason": "r" * 200}
    status.show("replicas", lambda: {"count": 1, "serving": 0, "shown": [{**replica, "in_flight": 0}]})
    with serve_status(status, ServerConfig(port=0)) as running:
        seen = visit(f"{running.url}/", PHONE)
        expect(seen.page.locator("#replicas")).to_contain_text("stale")
        expect(seen.page.locator("#groups article")).to_have_count(3)
        assert seen.fits()


def test_texts_of_a_model_are_texts(running: StatusServer, visit):
    seen = visit(f"{running.url}/")
    shown = HOSTILE.replace("\ud83d", "?")
    expect(seen.page.locator("#groups pre", has_text="window.hacked").first).to_have_text(shown)
    assert seen.page.evaluate("window.hacked") is None
    assert seen.page.locator("#groups script, #groups img").count() == 0


def test_completions_stand_side_by_side_and_wait_for_a_reader(running: StatusServer, status: RunStatus, visit):
    page = visit(f"{running.url}/").page
    expect(page.locator("#groups article")).to_have_count(3)
    cards = page.locator("#groups article").first.locator("li")
    assert 1 < cards.count() <= MAX_COMPLETIONS
    boxes = [card.bounding_box() for card in cards.all()]
    assert len({box["y"] for box in boxes if box}) == 1
    page.locator("#groups .more").first.click()
    expect(page.locator("#hold")).to_have_attribute("aria-pressed", "true")
    advance(status, [41])
    expect(page.locator("#hold")).to_have_text("Held · go on to step 41")
    expect(page.locator("#completions-words")).to_contain_text("Step 40")
    page.locator("#hold").click()
    expect(page.locator("#completions-words")).to_contain_text("Step 41")


def test_a_long_text_opens_and_closes(running: StatusServer, visit):
    seen = visit(f"{running.url}/")
    more, text = seen.page.locator("#groups .more").first, seen.page.locator("#groups pre:has(+ .more)").first
    abridged = text.inner_text()
    more.click()
    expect(more).to_have_text("less")
    assert len(text.inner_text()) > len(abridged)
    more.click()
    expect(more).to_have_text("more")
    assert text.inner_text() == abridged
    assert seen.complaints == []


def test_pointing_at_a_chart_reads_a_step(running: StatusServer, visit):
    page = visit(f"{running.url}/").page
    chart = page.locator(".chart").first
    expect(chart.locator("path").first).to_be_visible()
    chart.locator("svg").hover()
    expect(chart.locator(".title .soft")).to_have_text(re.compile(r"^step \d+$"))


def test_the_browser_asks_for_the_token(status: RunStatus, visit, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRPO_API_TOKEN", "correct-horse-battery")
    with serve_status(status, ServerConfig(host=EVERYWHERE, port=0)) as running:
        url = f"http://127.0.0.1:{running.port}/"
        seen = visit(url, http_credentials={"username": "me", "password": "correct-horse-battery"})
        expect(seen.page.locator("#connection")).to_have_text("live")


def test_before_the_first_step_it_says_what_is_missing(visit):
    with serve_status(RunStatus("fresh", max_steps=5, heartbeat_bound_s=60.0), ServerConfig(port=0)) as running:
        seen = visit(f"{running.url}/")
        expect(seen.page.locator("#connection")).to_have_text("live")
        expect(seen.page.locator("#steps")).to_have_text("step 0 of 5")
        expect(seen.page.locator("#stage")).to_contain_text("starting")
        expect(seen.page.locator("#waits-span")).to_have_text("known after the first step")
        assert seen.complaints == []


def test_while_a_run_starts_it_says_what_it_waits_for_and_until_when(visit):
    status = RunStatus("fresh", heartbeat_bound_s=60.0)
    status.enter_phase("waiting for the rollout server at http://a:8000", limit_s=600.0, silent=False)
    with serve_status(status, ServerConfig(port=0)) as running:
        seen = visit(f"{running.url}/")
        stage, reason = seen.page.locator("#stage"), seen.page.locator("#waits")
        expect(stage).to_have_text(re.compile(r"^waiting for the rollout server at http://a:8000.*, at most until \d"))
        expect(seen.page.locator("#steps")).to_have_text("no step yet")
        expect(reason).to_be_hidden()
        status.still_waiting("waiting for the rollout server at http://a:8000", "connection refused")
        expect(reason).to_have_text("connection refused")
        status.enter_stage("push")
        expect(reason).to_be_hidden()
        expect(stage).to_have_text(re.compile("^pushing weights"))
