"""The trainer's live page in a real browser: Debian's Chromium, driven by Playwright."""

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
    from playwright.sync_api import sync_playwright

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
        page.wait_for_function(
            r"/step \d+/i.test(document.body.innerText) && !/connecting/.test(document.body.innerText)",
            timeout=LIVE_TIMEOUT_S * 1000,
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=target, full_page=True)
        browser.close()
    return complaints
