"""What somebody reads off the live page is true: exact numbers, a run that stands still, text that can be copied."""

import re
import time

import pytest

from grpo_trainer.config.observing import ServerConfig
from grpo_trainer.observe.run_status import RunStatus
from grpo_trainer.observe.server import StatusServer, serve_status

from .conftest import NETWORK, PHONE, sync_api
from .made_run import MAX_STEPS, advance, make_metrics, show_servers, write_metrics

pytestmark = pytest.mark.browser

expect = sync_api.expect
SELECT = """selector => {
    const range = document.createRange();
    range.selectNodeContents(document.querySelector(selector));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
}"""


def chart(page: "sync_api.Page", title: str) -> "sync_api.Locator":
    return page.locator(".chart", has=page.get_by_role("heading", name=title, exact=True))


def test_a_run_that_stands_still_says_why_and_when_it_ends(running: StatusServer, status: RunStatus, visit):
    seen = visit(f"{running.url}/", PHONE)
    page = seen.page
    expect(page.locator("#left")).to_contain_text("left")
    expect(page.locator("#still")).to_be_hidden()
    status.show("stands_still", lambda: {"because": "no rollout server answers", "until_s": time.time() + 1})
    expect(page.locator("#still")).to_have_text(
        re.compile(r"^Standing still: no rollout server answers; ends by itself at about .*\d+:\d\d:\d\d")
    )
    expect(page.locator("#left")).to_have_text("")
    assert "standing still" in page.title()
    assert seen.fits()
    status.show("stands_still", lambda: {"because": "the reward server does not answer", "until_s": None})
    expect(page.locator("#still")).to_have_text("Standing still: the reward server does not answer")
    status.show("stands_still", lambda: None)
    expect(page.locator("#still")).to_be_hidden()
    expect(page.locator("#left")).to_contain_text("left")


def test_a_wait_for_scores_is_told_from_one_for_samples(running: StatusServer, status: RunStatus, visit):
    page = visit(f"{running.url}/").page
    expect(page.locator("#stage")).to_have_text(re.compile("^waiting for samples"))
    status.lacks("score")
    expect(page.locator("#stage")).to_have_text(re.compile("^waiting for scores"))
    status.lacks("wait")
    expect(page.locator("#stage")).to_have_text(re.compile("^waiting for samples"))


@pytest.mark.parametrize("late", [False, True])
def test_the_newest_values_are_exact_and_merged_points_say_so(status: RunStatus, visit, late: bool):
    """Whether the page has merged the points by itself or got them merged."""
    last = make_metrics(1200) | {"reward": 0.1234, "grad_norm": 0.0567}
    with serve_status(status, ServerConfig(port=0)) as running:
        page = visit(f"{running.url}/").page
        expect(page.locator("#connection")).to_have_text("live")
        expect(chart(page, "Gradient norm").locator(".title .soft")).to_have_text("before clipping")
        for first in range(41, 1200, 200):
            for step in range(first, min(first + 200, 1200)):
                status.step_done(step, make_metrics(step), seconds_per_stage={})
            expect(page.locator("#steps")).to_have_text(f"step {min(first + 199, 1199)} of {MAX_STEPS}")
        status.step_done(1200, last, seconds_per_stage={})
        if late:
            page = visit(f"{running.url}/").page
        expect(page.locator("#steps")).to_have_text(f"step 1200 of {MAX_STEPS}")
        expect(page.locator("#tiles li b").first).to_have_text("0.123")
        assert " · 0.123 · " in page.title()
        reward, norm = chart(page, "Reward"), chart(page, "Gradient norm")
        expect(reward.locator(".legend li b").first).to_have_text("0.123")
        expect(reward.locator(".title .soft")).to_have_text("mean of a step, each point the mean of 4 steps")
        expect(norm.locator(".legend li b")).to_have_text("0.0567")
        expect(norm.locator(".title .soft")).to_have_text("before clipping, each point the largest of 4 steps")
        norm.locator("svg").hover()
        expect(norm.locator(".title .soft")).to_have_text(re.compile(r"^around step \d+: largest of 4 steps$"))


def test_a_change_has_a_colour_only_beyond_the_noise(visit):
    status = RunStatus("noise", max_steps=MAX_STEPS, heartbeat_bound_s=60.0)
    for step in range(1, 41):
        noise = 0.1 * (-1) ** step
        status.step_done(step, {"reward": 0.5 + noise, "accuracy": 0.01 * step + noise / 9}, seconds_per_stage={})
    with serve_status(status, ServerConfig(port=0)) as running:
        page = visit(f"{running.url}/").page
        reward, accuracy = page.locator("#tiles li").all()[:2] if page.wait_for_selector("#tiles li") else ()
        expect(reward.locator("span").last).to_have_text("±0 from the first 10 steps to the last")
        expect(reward.locator("span").last).to_have_class(re.compile(r"^soft ?$"))
        expect(accuracy.locator("span").last).to_have_text("+30.0 points from the first 10 steps to the last")
        expect(accuracy.locator("span").last).to_have_class("soft up")


def test_the_title_of_a_tab_in_the_background_follows_the_run(running: StatusServer, status: RunStatus, visit):
    page = visit(f"{running.url}/").page
    expect(page.locator("#steps")).to_have_text(f"step 40 of {MAX_STEPS}")
    page.evaluate("window.requestAnimationFrame = () => 0")  # as in the background
    advance(status, [41])
    expect(page).to_have_title(re.compile(f"^41/{MAX_STEPS} · "))


def test_a_run_that_failed_does_not_stand_still_and_its_tab_says_so(status: RunStatus, visit):
    status.show("stands_still", lambda: {"because": "no rollout server answers", "until_s": time.time() + 60})
    with serve_status(status, ServerConfig(port=0)) as running:
        page = visit(f"{running.url}/").page
        expect(page.locator("#still")).to_be_visible()
        expect(page).to_have_title(re.compile("^standing still"))
        status.ended("RunError: no rollout server could sample")
    expect(page.locator("#ending")).to_contain_text("no rollout server could sample")
    expect(page.locator("#still")).to_be_hidden()
    expect(page.locator("#left")).to_be_empty()
    expect(page).to_have_title(re.compile("^failed"))


@pytest.mark.parametrize(
    ("max_steps", "step", "done"), [(0, 0, False), (MAX_STEPS, 3, False), (MAX_STEPS, MAX_STEPS, False), (3, 3, True)]
)
def test_a_run_is_done_when_it_says_so(max_steps: int, step: int, done: bool, visit):
    """Not by its steps: before the data are read none are known, and the last one may still lack model and report."""
    status = RunStatus("early", max_steps=max_steps, step=step, heartbeat_bound_s=60.0)
    status.enter_phase("waiting for the rollout server", limit_s=60.0, silent=False)
    status.still_waiting("waiting for the rollout server", "connection refused")
    with serve_status(status, ServerConfig(port=0)) as running:
        page = visit(f"{running.url}/").page
        expect(page.locator("#waits")).to_contain_text("connection refused")
        if done:
            status.done()
        status.ended(None)
    expect(page.locator("#ending")).to_contain_text("The run is done" if done else f"was stopped after step {step}")
    expect(page).to_have_title(re.compile("^done" if done else "^stopped"))
    expect(page.locator("#waits")).to_be_hidden()


def test_completions_that_are_held_stay_when_the_trainer_starts_again(visit):
    status = RunStatus("held", max_steps=MAX_STEPS, heartbeat_bound_s=60.0)
    advance(status, range(1, 6))
    with serve_status(status, ServerConfig(port=0)) as first:
        page = visit(f"{first.url}/").page
        expect(page.locator("#groups article")).to_have_count(3)  # before that there is nothing to hold
        page.locator("#hold").click()
        expect(page.locator("#hold")).to_have_text("Held · go on")
        status.ended(None)
    again = RunStatus("held", max_steps=MAX_STEPS, heartbeat_bound_s=60.0, step=5)
    with serve_status(again, ServerConfig(port=first.port)):
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#groups article")).to_have_count(3)
        advance(again, [6])
        expect(page.locator("#hold")).to_have_text("Held · go on to step 6")
        expect(page.locator("#completions-words")).to_contain_text("Step 5")
        page.locator("#hold").click()
        expect(page.locator("#completions-words")).to_contain_text("Step 6")
        page.locator("#hold").click()
        again.ended(None)
    with serve_status(RunStatus("another", heartbeat_bound_s=60.0), ServerConfig(port=first.port)):
        expect(page.locator("#run")).to_have_text("another")
        expect(page.locator("#groups article")).to_have_count(0)
        expect(page.locator("#hold")).to_have_text("Hold")


def test_the_shares_of_a_step_come_with_advice(running: StatusServer, visit):
    page = visit(f"{running.url}/").page

    def words(max_staleness: int, **shares: float) -> str:
        return page.evaluate(
            "([shares, facts]) => waitWords(shares, facts)", [shares, {"max_staleness": max_staleness}]
        )

    assert "More rollout servers help most, or max_staleness 1" in words(0, wait=0.7, train=0.3)
    assert words(2, wait=0.7, train=0.3).endswith("More rollout servers help most.")
    assert "A faster reward helps most" in words(0, wait=0.3, score=0.4, train=0.3)
    assert "The rollout servers wait for the trainer: fewer of them or a smaller max_staleness" in words(2, train=1.0)
    assert "would do" not in words(1, wait=0.3, train=0.7)
    assert "with max_staleness 0 they wait" in words(0, wait=0.3, train=0.7)


def test_text_can_be_copied_while_the_run_goes_on(running: StatusServer, status: RunStatus, visit):
    page = visit(f"{running.url}/").page
    expect(page.locator("#completions-words")).to_contain_text("Step 40")
    page.evaluate(SELECT, "#groups pre.prompt")
    prompt = page.evaluate("String(getSelection())")
    advance(status, [41])
    expect(page.locator("#completions-words")).to_contain_text("The next ones wait while you are in here.")
    assert page.evaluate("String(getSelection())") == prompt
    page.evaluate("getSelection().removeAllRanges()")
    expect(page.locator("#completions-words")).to_have_text(re.compile("^Step 41: [^T]*$"))
    page.locator("#groups ul.side").first.focus()
    advance(status, [42])
    expect(page.locator("#steps")).to_have_text(f"step 42 of {MAX_STEPS}")
    expect(page.locator("#completions-words")).to_contain_text("Step 41")
    page.locator("#hold").focus()
    expect(page.locator("#completions-words")).to_contain_text("Step 42")


def test_warnings_and_servers_stay_while_they_are_the_same_or_selected(running: StatusServer, status: RunStatus, visit):
    page = visit(f"{running.url}/").page
    expect(page.locator("#warnings li")).to_contain_text("gets no more traffic")
    page.evaluate(
        "window.before = ['#warnings li', '#replicas tr'].map((selector) => document.querySelector(selector))"
    )
    advance(status, [41])
    expect(page.locator("#steps")).to_have_text(f"step 41 of {MAX_STEPS}")
    same = "['#warnings li', '#replicas tr'].map((selector, i) => document.querySelector(selector) === before[i])"
    assert page.evaluate(same) == [True, True]
    page.evaluate(SELECT, "#warnings li")
    status.show("warnings", lambda: [{"level": "error", "text": "a newer one", "count": 1, "time_s": time.time()}])
    advance(status, [42])
    expect(page.locator("#steps")).to_have_text(f"step 42 of {MAX_STEPS}")
    assert page.evaluate(same) == [True, True]
    page.evaluate("getSelection().removeAllRanges()")
    expect(page.locator("#warnings li")).to_contain_text("a newer one")


def test_a_warning_of_another_day_has_its_date(running: StatusServer, status: RunStatus, visit):
    page = visit(f"{running.url}/", timezone_id="UTC").page
    expect(page.locator("#warnings time")).to_have_text("2025-10-09 08:53:20")
    status.show("warnings", lambda: [{"level": "error", "text": "just now", "count": 1, "time_s": time.time()}])
    expect(page.locator("#warnings time")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))


def test_a_value_of_another_step_says_so(running: StatusServer, visit):
    page = visit(f"{running.url}/").page
    accuracy = chart(page, "Accuracy")
    svg = accuracy.locator("svg")
    expect(svg.locator("path").first).to_be_visible()
    svg.hover(position={"x": 60, "y": 60})
    legend = accuracy.locator(".legend li b")
    expect(legend.nth(0)).not_to_contain_text("step")
    expect(legend.nth(1)).to_contain_text("(step 40)")


def test_what_the_last_step_did_not_measure_says_of_which_step_it_is(status: RunStatus, visit):
    with serve_status(status, ServerConfig(port=0)) as running:
        page = visit(f"{running.url}/").page
        legend = chart(page, "Reward").locator(".legend")
        expect(legend).to_contain_text("countdown")
        expect(legend).not_to_contain_text("(step")
        lacking = {
            name: value for name, value in make_metrics(41).items() if "countdown" not in name and name != "accuracy"
        }
        status.step_done(41, lacking, seconds_per_stage={})
        expect(legend.locator("li", has_text="countdown")).to_contain_text("(step 40)")
        expect(legend.locator("li", has_text="format")).not_to_contain_text("(step")
        expect(page.locator("#tiles li", has_text="Accuracy, batch")).to_contain_text("(step 40)")
        page.reload()
        expect(page.locator("#tiles li", has_text="Accuracy, batch")).to_contain_text("(step 40)")
        expect(page.locator("#tiles li", has_text="Reward")).not_to_contain_text("(step")


def test_a_tap_reads_a_step_until_the_next_one(running: StatusServer, visit):
    page = visit(f"{running.url}/", PHONE, has_touch=True).page
    charts = page.locator(".chart")
    expect(charts.first.locator("path").first).to_be_visible()
    charts.nth(0).locator("svg").tap()
    expect(charts.nth(0).locator(".title .soft")).to_have_text(re.compile(r"^step \d+$"))
    charts.nth(1).locator("svg").tap()
    expect(charts.nth(1).locator(".title .soft")).to_have_text(re.compile(r"^step \d+$"))
    expect(charts.nth(0).locator(".title .soft")).to_have_text("mean of a step")


def test_entropy_kl_and_the_optimizer_have_charts_of_their_own(running: StatusServer, visit):
    seen = visit(f"{running.url}/")
    expect(seen.page.locator("#more-charts .chart")).to_have_count(8)
    for title in ("Entropy", "KL", "Reward spread", "Off-policy", "Optimizer"):
        drawn = seen.page.get_by_role("img", name=re.compile(f"^{title} over the steps; last values: .*[0-9]"))
        expect(drawn.locator("path")).not_to_have_count(0)
    own = seen.page.get_by_role("img", name=re.compile("^Optimizer"))
    expect(own.locator("text"), "the steps").not_to_have_count(0)
    assert own.locator("text[text-anchor=end]").count() == 0, "no axis fits all of them"
    paths = own.locator("path").evaluate_all("nodes => nodes.map((node) => node.getBBox().height)")
    assert min(paths) > 20, "none of them is flat"
    assert seen.complaints == []


def test_a_trainer_that_starts_in_the_same_folder_does_not_wipe_the_page(tmp_path, visit):
    write_metrics(tmp_path, steps=25)
    status = RunStatus("again", max_steps=MAX_STEPS, heartbeat_bound_s=60.0)
    advance(status, range(1, 31))
    with serve_status(status, ServerConfig(port=0)) as first:
        seen = visit(f"{first.url}/")
        page = seen.page
        expect(page.locator("#steps")).to_have_text(f"step 30 of {MAX_STEPS}")
        status.ended(None)
    expect(page.locator("#connection")).to_have_text("run ended")
    assert page.evaluate("getComputedStyle(document.querySelector('main')).opacity") == "1", "its text stays readable"
    mistaken = RunStatus("again", heartbeat_bound_s=60.0)
    mistaken.enter_phase("loading the libraries", limit_s=60.0)
    with serve_status(mistaken, ServerConfig(port=first.port)):
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#left")).to_have_text("")
        assert page.evaluate("state.curves.reward.x.at(-1)") == 30
        mistaken.ended("UsageError: run_dir already holds a run")
    expect(page.locator("#ending")).to_contain_text("run_dir already holds a run")
    assert page.evaluate("state.curves.reward.x.at(-1)") == 30
    resumed = RunStatus("again", heartbeat_bound_s=60.0)
    show_servers(resumed)
    with serve_status(resumed, ServerConfig(port=first.port)):
        expect(page.locator("#connection")).to_have_text("live")
        assert page.evaluate("state.curves.reward.x.at(-1)") == 30
        resumed.know_run(max_steps=0, step=25)
        resumed.history.restore(tmp_path, through_step=25)
        expect(page.locator("#steps")).to_have_text("step 25")
        page.wait_for_function("state.curves.reward.x.at(-1) === 25")
        assert page.evaluate("state.curves.reward.x.length") == 25
    assert [text for text in seen.complaints if not NETWORK.search(text)] == []


def test_a_reward_that_never_changes_does_not_hang_the_page(visit):
    """Merged values that are equal differ in their last digit."""
    status = RunStatus("flat", max_steps=1000, heartbeat_bound_s=60.0)
    with serve_status(status, ServerConfig(port=0)) as running:
        seen = visit(f"{running.url}/")
        page = seen.page
        expect(page.locator("#connection")).to_have_text("live")
        for first, last in ((1, 200), (201, 400), (401, 600), (601, 603), (604, 700)):
            for step in range(first, last + 1):
                status.step_done(step, {"reward": -0.1, "step_time": 1.0}, seconds_per_stage={})
            expect(page.locator("#steps")).to_have_text(f"step {last} of 1000")
        assert seen.complaints == []


def test_who_looks_from_the_start_on_learns_that_completions_are_not_kept(visit):
    status = RunStatus("silent", max_steps=9, heartbeat_bound_s=60.0)
    status.enter_phase("loading the model", limit_s=60.0)
    with serve_status(status, ServerConfig(port=0)) as running:
        page = visit(f"{running.url}/").page
        expect(page.locator("#connection")).to_have_text("live")
        show_servers(status)
        facts = {**status.sources()["facts"](), "log_completions": False}
        status.show("facts", lambda: facts)
        advance(status, range(1, 4), with_groups=False)
        expect(page.locator("#completions-words")).to_contain_text("logging.log_completions is off")
