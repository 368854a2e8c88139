"""Episodes as conversations on both pages, in a real browser: what was trained on, forks, and hostile text as text."""

from dataclasses import replace
from pathlib import Path

import pytest

from grpo_proto import RewardScore
from grpo_trainer.algorithm.sequences import Episode, Group
from grpo_trainer.config.observing import ServerConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.observe.completions import CompletionLog
from grpo_trainer.observe.report import write_report
from grpo_trainer.observe.run_files import COMPLETIONS_FILE
from grpo_trainer.observe.run_status import RunStatus
from grpo_trainer.observe.server import serve_status
from tests.trainer.made_episodes import conversation

from .conftest import DESKTOP, PHONE, sync_api
from .made_run import HOSTILE, make_metrics

pytestmark = pytest.mark.browser

expect = sync_api.expect
SHOWN = HOSTILE.replace("\ud83d", "?")


def made(number: int, total: float) -> Episode:
    """The second message of the worst one is hostile, and so are its tool, call, mask and fork."""
    episode = replace(conversation(f"e-{number}"), total=total, advantage=total - 0.5)
    episode.rewards = {"environment": RewardScore(score=total, status="ok")}
    first, branch = episode.segments
    first.turns[1] = replace(first.turns[1], reward=total)
    if total:
        return replace(episode, status="completed", cause=None, segments=[first])
    call = {"id": "call_1", "type": "function", "function": {"name": HOSTILE, "arguments": f'{{"x": "{HOSTILE}"}}'}}
    episode.transcript[1] = {
        "role": "assistant",
        "content": HOSTILE,
        "reasoning_content": HOSTILE,
        "tool_calls": [call],
    }
    episode.transcript[2] = {"role": HOSTILE, "name": HOSTILE, "content": HOSTILE}
    first.turns[0] = replace(first.turns[0], text=f"{HOSTILE} {HOSTILE}")
    branch = replace(branch, fork_reason=HOSTILE, turns=[replace(branch.turns[0], text=HOSTILE, masked=HOSTILE)])
    return replace(episode, segments=[first, branch], attempt=1)


def made_groups() -> list[Group]:
    return [Group(0, PromptRow(0, [1], "", {}), [made(index, float(index < 2)) for index in range(4)])]


@pytest.mark.parametrize(("name", "size"), [("desktop", DESKTOP), ("phone", PHONE)])
def test_the_live_page_shows_conversations(visit, screenshots: Path, name: str, size: dict):
    status = RunStatus("episodes", max_steps=2, heartbeat_bound_s=60.0)
    status.step_done(1, make_metrics(1), seconds_per_stage={}, groups=made_groups())
    with serve_status(status, ServerConfig(port=0)) as running:
        seen = visit(f"{running.url}/", size)
        cards = seen.page.locator("#groups .told")
        expect(cards).to_have_count(4)
        expect(seen.page.locator("#groups article")).to_contain_text("row 0 · 4 episodes")
        best, worst = cards.first, cards.last
        expect(best.locator(".talk > li")).to_have_count(3)
        expect(best.locator(".talk > .trained").last).to_contain_text("reward 1")
        expect(best).to_contain_text("4 of 4 tokens trained")
        expect(worst.locator(".talk").first.locator("pre").first).to_have_text(SHOWN)
        expect(worst).to_contain_text("truncated, cause policy")
        expect(worst).to_contain_text("attempt 2")
        beside = worst.locator(".talk > .masked")
        expect(beside).to_contain_text("segment 1 forks from segment 0 at token 2")
        expect(beside.locator(".chip").first).to_have_text(f"masked: {SHOWN}"[:108])
        assert seen.page.evaluate("window.hacked") is None
        assert seen.page.locator("#groups script, #groups img").count() == 0
        assert seen.fits()
        seen.page.locator("#groups").screenshot(path=screenshots / f"live-episodes-{name}.png")
        assert seen.complaints == []


@pytest.mark.parametrize(("name", "size"), [("desktop", DESKTOP), ("phone", PHONE)])
def test_the_report_shows_conversations(tmp_path: Path, visit, screenshots: Path, name: str, size: dict):
    """Without metrics, and so without the charts, which take a while to load."""
    log = CompletionLog(tmp_path / COMPLETIONS_FILE, resumed_step=None, part_mib=1)
    log.write(1, made_groups())
    log.close()
    seen = visit(write_report(tmp_path).as_uri(), size)
    best, worst = seen.page.locator("#completions td").nth(1), seen.page.locator("#completions td").nth(2)
    expect(best.locator(".talk > .trained")).to_have_count(2)
    expect(worst.locator(".talk > .masked")).to_have_count(1)
    expect(worst.locator(".talk pre").first).to_have_text(SHOWN)
    assert seen.page.evaluate("window.hacked") is None
    assert seen.fits()
    seen.page.locator("#completions").screenshot(path=screenshots / f"report-episodes-{name}.png")
    assert seen.complaints == []
