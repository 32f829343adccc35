"""An operator sends a job to its nodes on its page, and calls it back; other users see where it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.coordinator.test_mode_switch import ALL, GOSSIP, report, tasks
from tests.dashboard.scenario import PATIENCE_MS
from tests.dashboard.screens import each_screen
from tests.support.coordinator import OPERATOR, Inside, inside
from tests.support.scenario import Stage, set_up

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def running(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """A coordinator. (The browser is there first: without one there is nothing to do.)"""
    with inside(tmp_path_factory.mktemp("switching") / "data", lease_s=3600.0) as made:
        yield made


@pytest.fixture(scope="module")
def stage(running: Inside) -> Iterator[Stage]:
    """A job that may go to its nodes."""
    made = set_up(running, gossip=GOSSIP)
    yield made
    made.close()


def sign_in(page: Page) -> None:
    page.get_by_test_id("sign-in").click()
    page.get_by_label("Token").fill(OPERATOR)
    page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
    expect(page.get_by_test_id("sign-out")).to_be_visible()


def confirm(page: Page, why: str = "") -> None:
    """Answer the dialog that asks before anything is done."""
    page.get_by_role("dialog").get_by_label("Reason").fill(why)
    page.get_by_test_id("confirm").click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_there_and_back(stage: Stage, page: Page, errors: list[str]) -> None:
    page.goto(f"{stage.running.url}/jobs/{stage.job}", timeout=PATIENCE_MS)
    mode = page.get_by_test_id("job-mode")
    expect(mode).to_have_text("Server", timeout=PATIENCE_MS)
    expect(page.get_by_test_id("switch-gossip")).to_have_count(0)
    sign_in(page)
    expect(page.get_by_test_id("mode-history")).to_have_count(0)

    page.get_by_test_id("switch-gossip").click()
    expect(page.get_by_role("dialog")).to_contain_text("from version 0")
    assert stage.running.job(stage.job)["mode"] == "server", "nothing is done before it is confirmed"
    confirm(page, "new disk")
    expect(mode).to_have_text("Gossip")
    expect(page.get_by_test_id("mode-history")).to_contain_text("new disk")
    for name in ALL:
        expect(page.get_by_test_id(f"node-row-{name}")).to_contain_text("Gossip")
    tasks(stage, *ALL, recall=False)

    page.get_by_test_id("switch-server").click()
    confirm(page)
    expect(mode).to_have_text("Returning")
    for way in ("switch-gossip", "switch-server"):
        expect(page.get_by_test_id(way)).to_have_count(0)
    tasks(stage, *ALL, recall=True)
    for name in ALL:
        assert report(stage, name).status_code == 200
    expect(mode).to_have_text("Server")
    expect(page.get_by_test_id("version-count")).to_have_text("1 of 3")
    expect(page.get_by_test_id("mode-history").locator("li")).to_have_count(4)
    words = page.get_by_test_id("mode-history").locator("li .mode").all_inner_texts()
    assert [text.strip() for text in words] == ["Server", "Returning", "Gossip", "Server"]
    page.reload()
    expect(page.get_by_test_id("mode-history").locator("li")).to_have_count(4)
    assert not errors


@each_screen
def test_nothing_sticks_out(stage: Stage, browser: Browser, scheme: Any, width: int) -> None:
    stage.running.post(f"/jobs/{stage.job}/switch", {"to": "gossip", "why": "unbreakable" * 12})
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(f"{stage.running.url}/jobs/{stage.job}")
    expect(page.get_by_test_id("mode-history")).to_contain_text("unbreakable", timeout=PATIENCE_MS)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_a_job_that_must_stay_has_no_button(running: Inside, page: Page, errors: list[str]) -> None:
    running.begin("stays", nodes=2)
    page.goto(f"{running.url}/jobs/stays", timeout=PATIENCE_MS)
    sign_in(page)
    expect(page.get_by_test_id("pause")).to_be_visible()
    for absent in ("job-mode", "switch-gossip", "switch-server"):
        expect(page.get_by_test_id(absent)).to_have_count(0)
    assert not errors
