"""The reward server's `/docs` in a real browser: its examples can be tried there, by somebody who has the token."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import Service, free_port, reward_command, service

from .conftest import PHONE, Visit, sync_api

pytestmark = pytest.mark.browser

expect = sync_api.expect
TOKEN = "a-token-of-this-test"
CREDENTIALS = {"username": "any", "password": TOKEN}
"""What the browser's user is asked for."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    port = free_port()
    command = [*reward_command(port), "--adapter-rewards", "accuracy"]
    log = tmp_path_factory.mktemp("reward") / "log"
    with service(command, log, port=port, environment={"GRPO_API_TOKEN": TOKEN}) as server:
        server.wait_until_live(60)
        yield server


def try_route(seen: Visit, path: str) -> tuple[str, str]:
    """Open the route's block, send its example, and give the status and the text that came back.

    The block is closed again: every further answer would have the page draw all that is open anew.
    """
    block = seen.page.locator(".opblock", has=seen.page.locator(f'[data-path="{path}"]'))
    block.locator(".opblock-summary").click()
    block.get_by_role("button", name="Execute").click()
    answer = block.locator(".live-responses-table .response .response-col_status")
    expect(answer).to_have_text(re.compile(r"\d{3}"))
    status, text = answer.inner_text().split()[0], block.locator(".live-responses-table").inner_text()
    block.locator(".opblock-summary-control").click()
    expect(block.locator(".opblock-body")).to_have_count(0)
    return status, text


def test_every_example_can_be_tried(served: Service, visit, screenshots: Path):
    seen = visit(f"{served.url}/docs", http_credentials=CREDENTIALS)
    expect(seen.page.locator("h1.title, h2.title")).to_contain_text("grpo-reward")
    paths = [path.replace("\u200b", "") for path in seen.page.locator(".opblock-summary-path").all_inner_texts()]
    assert {"/v1/score", "/v1/rewards", "/get_reward", "/rm", "/verify", "/livez"} <= set(paths)
    answers = {path: try_route(seen, path) for path in paths}
    assert {path: status for path, (status, _) in answers.items()} == dict.fromkeys(paths, "200")
    assert '"total": 1.1' in "".join(text for _, text in answers.values())
    seen.page.screenshot(path=screenshots / "reward-docs.png", full_page=True)
    assert seen.complaints == []


def test_it_asks_nobody_else_and_fits_a_phone(served: Service, visit):
    seen = visit("about:blank", PHONE, http_credentials=CREDENTIALS)
    asked: list[str] = []
    seen.page.on("request", lambda request: asked.append(request.url))
    seen.page.goto(f"{served.url}/docs")
    expect(seen.page.locator("h1.title, h2.title")).to_be_visible()
    assert seen.fits()
    assert len(asked) >= 5
    assert [url for url in asked if not url.startswith((served.url, "data:"))] == []


def test_without_the_token_the_page_is_not_shown(served: Service, visit):
    seen = visit("about:blank")
    for path in ("/docs", "/docs/start.js", "/docs/files/swagger-ui-bundle.js", "/openapi.json"):
        answer = seen.page.request.get(f"{served.url}{path}")
        assert answer.status == 401, path
    assert seen.page.request.get(f"{served.url}/docs").headers["www-authenticate"].startswith("Basic")
    assert seen.page.request.post(f"{served.url}/v1/score").headers["www-authenticate"] == "Bearer"
