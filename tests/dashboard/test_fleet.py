"""The strip above the list of jobs: nodes by state, jobs under way, bytes, and how the coordinator does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from shoal_coordinator.schemas.replicas import ReplicaStatus
from tests.dashboard.scenario import PATIENCE_MS
from tests.dashboard.screens import each_screen
from tests.support.coordinator import Inside, inside
from tests.support.scenario import Stage, by_hand, set_up

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture
def running(browser: Browser, tmp_path: Path) -> Iterator[Inside]:
    """A coordinator that loses no node. (The browser is there first: without one there is nothing to do.)"""
    with inside(tmp_path / "data", lease_s=86_400.0) as made:
        yield made


@pytest.fixture
def stage(running: Inside) -> Iterator[Stage]:
    """Two nodes that train, and one that has nothing to do."""
    made = set_up(running)
    yield made
    made.close()


def test_nodes_and_jobs_are_counted_as_they_change(stage: Stage, page: Page, errors: list[str]) -> None:
    page.goto(stage.running.url, timeout=PATIENCE_MS)
    numbers = {"online": 1, "training": 2, "stale": 0, "gone": 0}
    for state, number in numbers.items():
        expect(page.get_by_test_id(f"fleet-{state}").locator("b")).to_have_text(str(number))
    expect(page.get_by_test_id("fleet-health")).to_have_attribute("data-state", "ready")
    fleet = page.get_by_test_id("fleet")
    job = stage.running.job("main")
    assert job["up_bytes"] + job["down_bytes"] > 0
    expect(page.get_by_test_id("fleet-today")).to_contain_text("kB")
    expect(fleet.locator(".stat").nth(1)).to_contain_text("1of 1")
    stage.nodes.append(by_hand(stage.running, "n3"))
    expect(page.get_by_test_id("fleet-online").locator("b")).to_have_text("2")
    stage.running.post("/jobs/main/stop", {"when": "now"})
    expect(fleet.locator(".stat").nth(1)).to_contain_text("0of 1")
    assert not errors


def test_a_coordinator_in_trouble_says_what_it_is(stage: Stage, page: Page) -> None:
    page.goto(stage.running.url, timeout=PATIENCE_MS)
    health = page.get_by_test_id("fleet-health")
    expect(health).to_have_text("Ready")
    stage.running.runner("main").gate.trouble = "its journal cannot be written"
    expect(health).to_have_attribute("data-state", "problem")
    expect(page.get_by_test_id("fleet")).to_contain_text("main: its journal cannot be written")
    stage.running.runner("main").gate.trouble = ""
    expect(health).to_have_attribute("data-state", "ready")


FOLLOWERS = {"http://10.0.0.3:8080": 1, "http://10.0.0.5:8080": 2}


def test_of_several_coordinators_it_says_which_one_leads(stage: Stage, page: Page, errors: list[str]) -> None:
    standing = ReplicaStatus("leader", "one", "http://10.0.0.3:8080", 2, "http://10.0.0.3:8080", 1, 0, 0, 1, {})
    page.goto(stage.running.url, timeout=PATIENCE_MS)
    expect(page.get_by_test_id("fleet-health")).to_have_attribute("data-state", "ready")
    expect(page.get_by_test_id("fleet-leader")).to_have_count(0)
    stage.running.coordinator.replica_status = lambda: standing
    page.reload()
    expect(page.get_by_test_id("fleet-leader")).to_have_text("leader: http://10.0.0.3:8080, term 2")
    stage.running.coordinator.replica_status = lambda: replace(
        standing, leader="http://10.0.0.4:8080", term=3, followers=FOLLOWERS
    )
    expect(page.get_by_test_id("fleet-leader")).to_have_text(
        "leader: http://10.0.0.4:8080, term 3; 3 jobs on 2 followers"
    )
    assert not errors


@each_screen
def test_nothing_sticks_out(stage: Stage, browser: Browser, scheme: Any, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(stage.running.url)
    expect(page.get_by_test_id("fleet-health")).to_be_visible(timeout=PATIENCE_MS)
    for figure in page.get_by_test_id("fleet").locator(".stat").all():
        assert figure.evaluate("of => getComputedStyle(of).paddingLeft") != "0px", "a page's own sheet is missing"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
