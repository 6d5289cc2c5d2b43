"""A real browser for the pages: Debian's Chromium, driven by playwright; without one tests are skipped."""

import os
import shutil

import pytest

CHROMIUM = (
    os.environ.get("SOTTOVOCE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
)


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed; make pages installs it"
    )
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine; apt-get install chromium, then make pages")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def page(browser):
    """A page that remembers what the console said and what was asked of the network."""
    context = browser.new_context(viewport={"width": 1280, "height": 1400}, accept_downloads=True)
    opened = context.new_page()
    opened.complaints, opened.requested = [], []
    opened.on(
        "console", lambda m: opened.complaints.append(m.text) if m.type in ("error", "warning") else None
    )
    opened.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.on("request", lambda request: opened.requested.append(request.url))
    yield opened
    context.close()


def violations(page):
    """What axe finds, as text: empty where a page can be used with a screen reader and a keyboard."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    return [(v["id"], [n["target"] for n in v["nodes"]]) for v in axe.run(page).response["violations"]]
