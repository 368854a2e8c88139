"""The trainer's live page in a real browser: Debian's Chromium, driven by Playwright."""

import re
import shutil
from pathlib import Path

from .docker_host import CannotRun, install_from_debian

LIVE_TIMEOUT_S = 60.0


def find_chromium() -> str | None:
    """The system's Chromium, installed from Debian when there is none; None where that cannot be done."""
    if shutil.which("chromium") is None:
        try:
            install_from_debian("chromium")
        except CannotRun:
            return None
    return shutil.which("chromium")


def photograph(chromium: str, url: str, *, token: str, target: Path) -> list[str]:
    """Wait until the page shows a step, keep a picture of it, and return what the browser complained of."""
    from playwright.sync_api import expect, sync_playwright

    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context(
            viewport={"width": 1200, "height": 1000}, http_credentials={"username": "test", "password": token}
        )
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        # Not `wait_for_function`: it evaluates its text again and again, which the page's policy forbids.
        shown = expect(page.locator("body"))
        limit_ms = LIVE_TIMEOUT_S * 1000
        shown.to_contain_text(re.compile(r"step \d+", re.IGNORECASE), use_inner_text=True, timeout=limit_ms)
        shown.not_to_contain_text("connecting", use_inner_text=True, timeout=limit_ms)
        target.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=target, full_page=True)
        browser.close()
    return complaints
