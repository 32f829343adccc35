"""A browser, and a page that may not complain."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

import shoal_dashboard
from tests.dashboard.scenario import PATIENCE_MS

expect.set_options(timeout=PATIENCE_MS)

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium: install the package chromium")
    if shoal_dashboard.assets() is None:
        pytest.skip("the dashboard is not built: python dev.py dashboard")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture
def errors() -> list[str]:
    """Return the errors of the page."""
    return []


@pytest.fixture
def page(browser: Browser, errors: list[str]) -> Iterator[Page]:
    """A page; its errors are in `errors`."""
    opened = browser.new_page(viewport={"width": 1280, "height": 1000})
    opened.set_default_timeout(PATIENCE_MS)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    yield opened
    opened.close()
