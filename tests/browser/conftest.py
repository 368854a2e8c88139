"""A real browser: the system's chromium, driven by Playwright. Nothing is downloaded.

Without one these tests are skipped; GRPO_REQUIRE_BROWSER=1 makes that a failure. GRPO_SCREENSHOTS names a folder in
which the screenshots are kept.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grpo_trainer.config.observing import ServerConfig
from grpo_trainer.observe.run_status import RunStatus
from grpo_trainer.observe.server import StatusServer, serve_status

from .made_run import make_status

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
PHONE = {"width": 360, "height": 740}
DESKTOP = {"width": 1600, "height": 1000}
NETWORK = re.compile(r"Failed to load resource: net::ERR_(CONNECTION_REFUSED|INCOMPLETE_CHUNKED_ENCODING)")
"""What the browser itself says of a server that is gone; no page can keep it quiet."""

sync_api = pytest.importorskip("playwright.sync_api") if os.environ.get("GRPO_REQUIRE_BROWSER") != "1" else None
if sync_api is None:
    from playwright import sync_api

# Ends a wait for what does not come: a report is drawn in 4 s on a slow machine, and in over 20 s on a busy one.
TIMEOUT_MS = 60_000
sync_api.expect.set_options(timeout=TIMEOUT_MS)  # the default time-out of a context is not that of `expect`


@pytest.fixture(scope="module")
def browser() -> "Iterator[sync_api.Browser]":
    """Not for the whole session: while Playwright is open its event loop runs, and no other test could have one."""
    executable = next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    if executable is None:
        reason = "no chromium on this machine; apt-get install chromium"
        if os.environ.get("GRPO_REQUIRE_BROWSER") == "1":
            pytest.fail(f"{reason} (GRPO_REQUIRE_BROWSER=1)")
        pytest.skip(reason)
    with sync_api.sync_playwright() as playwright:
        # Chromium's own sandbox refuses root, and needs user namespaces that containers often lack.
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A tab and everything its console complained about."""

    def __init__(self, page: "sync_api.Page"):
        self.page, self.complaints = page, []
        page.on("console", lambda message: self._hear(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))

    def _hear(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")

    def fits(self) -> bool:
        """Whether nothing must be scrolled sideways."""
        size = self.page.viewport_size
        assert size is not None
        return self.page.evaluate("document.scrollingElement.scrollWidth") <= size["width"]


@pytest.fixture
def visit(browser: "sync_api.Browser") -> Iterator[Callable[..., Visit]]:
    """`visit(url, size, **options)` opens a page in a fresh browser profile."""
    contexts = []

    def open_page(url: str, size: dict[str, int] = DESKTOP, **options: object) -> Visit:
        context = browser.new_context(viewport=size, **options)
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        visit = Visit(context.new_page())
        visit.page.goto(url)
        return visit

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("GRPO_SCREENSHOTS") or tmp_path / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def status() -> RunStatus:
    """Of a run in the middle."""
    return make_status(steps=40)


@pytest.fixture
def running(status: RunStatus) -> Iterator[StatusServer]:
    with serve_status(status, ServerConfig(port=0)) as running:
        yield running
