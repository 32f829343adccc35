"""The pages of nodes in a real browser: two hundred of them, one of them, live, and with hostile words of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard import axe
from tests.dashboard.screens import each_screen
from tests.dashboard.sign_in import sign_in
from tests.dashboard.test_failures import fail
from tests.dashboard.test_logs import write
from tests.support.coordinator import Inside, inside
from tests.support.scenario import Stage, by_hand, set_up

pytestmark = [pytest.mark.timeout(300)]

HOSTILE = {
    "<b>tag</b>": "<img src=x onerror=document.body.remove()>",
    "device": "node-\u202egnp.exe",
    "note": "x" * 4096,
}


@pytest.fixture(autouse=True)
def quiet(errors: list[str]) -> Iterator[None]:
    yield
    assert not errors


@pytest.fixture(scope="module")
def stage(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A job of two nodes, one that says evil things of itself, and a crowd of two hundred."""
    with inside(tmp_path_factory.mktemp("nodes") / "data", lease_s=86_400.0) as running:
        made = set_up(running)
        presence = running.coordinator.nodes.presence
        for number in range(200):
            presence.info[f"crowd-{number}"] = {"device": "cuda" if number % 2 else "cpu"}
        made.nodes.append(by_hand(running, "evil"))
        presence.info["evil"] = HOSTILE
        made.report(node="n0", metrics={"train/loss": "NaN"})
        yield made
        made.close()


@pytest.fixture
def running(stage: Stage) -> Inside:
    return stage.running


def test_two_hundred_nodes_are_found_and_sorted_by_keyboard(running: Inside, page: Page) -> None:
    page.goto(running.url)
    page.get_by_role("link", name="Nodes", exact=True).press("Enter")
    rows = page.get_by_test_id("fleet-table").locator("tbody tr")
    expect(page.get_by_test_id("fleet-table")).to_have_attribute("aria-rowcount", "205")  # with the headings
    page.get_by_test_id("find-nodes").press_sequentially("crowd-19")
    expect(rows).to_have_count(11)
    expect(page).to_have_url(f"{running.url}/nodes?q=crowd-19")
    page.get_by_test_id("find-nodes").fill("")
    page.get_by_role("button", name="Reports").press("Enter")
    expect(rows.first).to_contain_text("n0")
    page.reload()
    expect(rows.first).to_contain_text("n0")
    rows.first.get_by_role("link", name="n0").press("Enter")
    expect(page).to_have_url(f"{running.url}/nodes/n0")
    expect(page.get_by_test_id("node-jobs")).to_contain_text("main")
    expect(page.get_by_test_id("node-reports")).to_contain_text("diverged")
    expect(page.get_by_test_id("node-history")).to_contain_text("n0 joined")


def test_what_a_node_says_of_itself_is_only_a_text(running: Inside, page: Page) -> None:
    page.goto(f"{running.url}/nodes/evil")
    expect(page.get_by_test_id("node-info")).to_contain_text(HOSTILE["<b>tag</b>"])
    expect(page.get_by_test_id("node-info")).to_contain_text("node-⟨202E⟩gnp.exe")
    assert page.locator("main img").count() == 0


def test_a_nodes_failures_and_log_come_live(running: Inside, stage: Stage, page: Page) -> None:
    page.goto(f"{running.url}/nodes/n1")
    page.get_by_role("tab", name="Overview").press("ArrowRight")
    expect(page).to_have_url(f"{running.url}/nodes/n1?view=failures")
    expect(page.get_by_text("No failures")).to_be_visible()
    expect(page.get_by_test_id("connection-banner")).to_have_attribute("data-state", "live")
    fail(stage, "n1", "disk full", phase="download")
    expect(page.locator(".failure")).to_have_count(1)
    for part in ("main", "download", "disk full"):
        expect(page.locator(".failure")).to_contain_text(part)
    page.get_by_role("tab", name="Failures").press("ArrowRight")
    expect(page.get_by_text("No log lines yet")).to_be_visible()
    write(running, ["a step"], node="n1")
    write(running, ["another's step"], node="n2")
    write(running, ["a last step"], node="n1", process="2")
    for text, times in (("a step", 1), ("a last step", 1), ("another's step", 0)):
        expect(page.locator(".log-line").filter(has_text=text)).to_have_count(times)
    expect(page.get_by_label("Node", exact=True)).to_be_hidden()


def test_a_node_that_is_not_there(running: Inside, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(f"{running.url}/nodes/nobody")
    expect(page.get_by_role("heading", name="Node not found")).to_be_visible()
    page.close()


def test_a_job_leads_to_its_nodes(running: Inside, page: Page) -> None:
    page.goto(f"{running.url}/jobs/main")
    page.get_by_test_id("node-row-n1").get_by_role("link", name="n1").click()
    expect(page.get_by_test_id("node-state")).to_be_visible()


@each_screen
def test_nothing_sticks_out_or_is_objected_to(running: Inside, browser: Browser, scheme: Any, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    for place, shown in (
        ("nodes?q=evil", "fleet-table"),
        ("nodes/n0", "node-reports"),
        ("nodes/evil", "node-info"),
        ("nodes/n1?view=logs", "log"),
    ):
        page.goto(f"{running.url}/{place}")
        expect(page.get_by_test_id(shown)).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, place
        assert axe.violations(page) == [], place
    page.close()


def test_an_operator_drains_and_activates_a_node(running: Inside, page: Page) -> None:
    page.goto(f"{running.url}/nodes/n1")
    expect(page.get_by_test_id("make-drained")).to_have_count(0)
    sign_in(page)
    page.goto(f"{running.url}/nodes/n1")
    page.get_by_test_id("make-drained").click()
    expect(page.get_by_test_id("availability")).to_have_text("Drained")
    assert running.get("/nodes/n1")["availability"] == "drained"
    page.get_by_test_id("make-active").click()
    expect(page.get_by_test_id("availability")).to_have_count(0)
    assert running.get("/nodes/n1")["availability"] == "active"
