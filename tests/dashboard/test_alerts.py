"""Alerts in a browser: on every page until an operator acknowledges them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from shoal_coordinator.alerts import alert_rules
from shoal_coordinator.composition import housekeeping
from tests.dashboard import axe
from tests.dashboard.scenario import PATIENCE_MS
from tests.dashboard.screens import each_screen
from tests.support.coordinator import OPERATOR, Inside, inside
from tests.support.scenario import set_up

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "ALERTS_S", 0.05)
    monkeypatch.setattr(alert_rules, "CLEAR_S", 0.2)
    monkeypatch.setitem(alert_rules.HOLD_S, "disk-low", 0.0)


@pytest.fixture
def low(browser: Browser, tmp_path: Path) -> Iterator[Inside]:
    """A coordinator whose disk is low. (The browser is there first: without one there is nothing to do.)"""
    with inside(tmp_path / "data", alert_disk_bytes=2**60) as made:
        yield made


def test_a_lost_node_is_told_of_and_its_return_too(browser: Browser, tmp_path: Path, page: Page) -> None:
    with inside(tmp_path / "data", lease_s=2.0, alert_disk_bytes=0) as running:
        stage = set_up(running)
        page.goto(f"{running.url}/jobs/main")
        banner = page.get_by_test_id("alert-banner")
        expect(banner).to_contain_text("has fallen silent")
        banner.get_by_role("link").click()
        expect(page.get_by_test_id("alerts").locator("li")).to_have_count(3)
        expect(banner).to_have_count(0)
        for _ in range(PATIENCE_MS // 500):
            stage.nodes[0].ask("GET", "/work", params={"wait_s": 0.4})
            if "cleared" in page.get_by_test_id("alerts").inner_text():
                break
        expect(page.get_by_test_id("alerts")).to_contain_text("cleared")
        stage.close()


def test_only_an_operator_acknowledges(low: Inside, page: Page) -> None:
    page.goto(f"{low.url}/alerts")
    row = page.get_by_test_id("alerts").locator("li")
    expect(row).to_contain_text("Disk low")
    expect(row.get_by_role("button")).to_have_count(0)
    page.get_by_test_id("sign-in").click()
    page.get_by_label("Token").fill(OPERATOR)
    page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
    row.get_by_role("button", name="Acknowledge").focus()
    page.keyboard.press("Enter")
    expect(row).to_contain_text("acknowledged")
    page.get_by_role("link", name="Jobs", exact=True).click()
    expect(page.get_by_test_id("fleet-health")).to_be_visible()
    expect(page.get_by_test_id("alert-banner")).to_have_count(0)


@each_screen
def test_everybody_can_read_them(low: Inside, browser: Browser, scheme: str, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page.set_default_timeout(PATIENCE_MS)
    for path, shown in (("/", "alert-banner"), ("/alerts", "alerts")):
        page.goto(f"{low.url}{path}")
        expect(page.get_by_test_id(shown)).to_be_visible()
        assert axe.violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
