"""The demo's page in a real browser: a round arrives without a reload."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.scenario import PATIENCE_MS
from tests.dashboard.screens import each_screen
from tests.support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.timeout(300)]

ROUNDS = 240  # more than pass while a busy machine loads the page


def until_it_answers(address: str) -> None:
    """The address is printed before the job is there."""

    def answers() -> bool:
        try:
            urllib.request.urlopen(address, timeout=PATIENCE_S).close()
        except urllib.error.URLError:
            return False
        return True

    until(f"an answer of {address}", answers, every_s=0.1)


@pytest.fixture(scope="module")
def process(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """`shoal demo`, which goes on serving when its job has ended. The browser is there before it begins."""
    argv = [sys.executable, "-m", "shoal", "demo", "--port", "0", "--keep", "--rounds", str(ROUNDS)]
    environment = os.environ | {"TMPDIR": str(tmp_path_factory.mktemp("demo")), "PYTHONUNBUFFERED": "1"}
    started = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment, cwd=Path(__file__).parents[2])
    yield started
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=PATIENCE_MS / 1000)


@pytest.fixture(scope="module")
def demo(process: subprocess.Popen[str]) -> str:
    """The address of the demo's job page."""
    assert process.stdout is not None
    found = re.search(r"https?://\S+", process.stdout.readline())
    assert found is not None, "the demo does not begin with the dashboard's address"
    until_it_answers(found[0].replace("/jobs/", "/api/v1/jobs/"))
    return found[0]


@pytest.fixture
def ends(process: subprocess.Popen[str]) -> Callable[[], None]:
    """Ends the demo, and waits until it has."""

    def end() -> None:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_MS / 1000)

    return end


def rounds_shown(page: Page) -> int:
    found = re.search(r"\d+", page.get_by_test_id("version-count").inner_text(timeout=PATIENCE_MS))
    return int(found[0]) if found else 0


def arrives(page: Page, number: int) -> None:
    """Wait until the page shows that round. (The page's policy forbids to wait with a script in it.)"""
    for _ in range(PATIENCE_MS // 100):
        if rounds_shown(page) >= number:
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"round {number} never came; the page shows {rounds_shown(page)}")


def test_a_round_arrives_without_a_reload(demo: str, page: Page, errors: list[str]) -> None:
    page.goto(demo, timeout=PATIENCE_MS)
    page.evaluate("window.unchanged = true")
    expect(page.get_by_test_id("connection-banner")).to_have_attribute("data-state", "live", timeout=PATIENCE_MS)
    arrives(page, 1)
    before = rounds_shown(page)
    assert before < ROUNDS, "the demo was over before the page was there"
    arrives(page, before + 1)
    expect(page.get_by_test_id("nodes-table").locator("tbody tr")).to_have_count(4)
    events = page.get_by_test_id("events")
    events.get_by_text("earlier decisions").click(timeout=PATIENCE_MS)
    arrives(page, rounds_shown(page) + 2)  # the group stays open when the next rounds arrive
    expect(events.locator(".events-group li", has_text="4 of 4 reports").first).to_be_visible()
    assert page.evaluate("window.unchanged") is True
    assert not errors


def test_the_end_of_the_job_is_seen(demo: str, page: Page, errors: list[str]) -> None:
    page.goto(demo)
    arrives(page, ROUNDS)
    expect(page.get_by_test_id("accuracy-latest")).to_contain_text("%")
    assert not errors


@each_screen
def test_nothing_sticks_out(demo: str, browser: Browser, scheme: Any, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(demo)
    expect(page.get_by_test_id("nodes-table")).to_be_visible(timeout=PATIENCE_MS)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_jobs_are_listed(demo: str, page: Page, errors: list[str]) -> None:
    page.goto(demo.rsplit("/jobs/", 1)[0])
    row = page.get_by_test_id("job-row-digits")
    expect(row).to_contain_text("fedavg", timeout=PATIENCE_MS)
    row.get_by_role("link").first.click()
    expect(page.get_by_test_id("chart-accuracy")).to_be_visible(timeout=PATIENCE_MS)
    assert not errors


def test_a_coordinator_that_is_gone_is_said_to_be_gone(demo: str, ends: Callable[[], None], page: Page) -> None:
    page.goto(demo)
    banner = page.get_by_test_id("connection-banner")
    expect(banner).to_have_attribute("data-state", "live", timeout=PATIENCE_MS)
    ends()  # the last test of this file: there is no demo after it
    expect(banner).to_have_attribute("data-state", "unreachable", timeout=PATIENCE_MS)
