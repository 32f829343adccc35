"""Findings of axe-core on pages that are full of figures: nothing, in either theme and on a narrow screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard import axe
from tests.dashboard.scenario import PATIENCE_MS
from tests.dashboard.screens import each_screen
from tests.dashboard.sign_in import sign_in
from tests.dashboard.simulated_nodes import SimulatedNodes
from tests.support.coordinator import OPERATOR, inside

pytestmark = [pytest.mark.timeout(300), each_screen]


@pytest.fixture(scope="module")
def simulated_nodes(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedNodes]:
    """A job that its nodes carry on, each in another state; they have exchanged and refused something. (The browser is
    there first: without one there is nothing to do.)"""
    axe.script()
    with inside(tmp_path_factory.mktemp("accessible") / "data", lease_s=86_400.0) as running:
        made = SimulatedNodes(running, 5)
        running.post(f"/jobs/{made.job}/switch", {"to": "gossip"})
        made.go("gossip")
        made.learn()
        made.mix(6)
        made.members[1].refused = {"trust.signature": 3}
        for one, state in zip(made.members[2:], ("suspect", "returning", "coordinated"), strict=True):
            one.state = state
        made.tell()
        yield made
        made.close()


@pytest.fixture
def page(browser: Browser, scheme: Any, width: int) -> Iterator[Page]:
    opened = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    opened.set_default_timeout(PATIENCE_MS)
    yield opened
    opened.close()


def test_the_list_of_jobs(simulated_nodes: SimulatedNodes, page: Page) -> None:
    page.goto(simulated_nodes.running.url)
    expect(page.get_by_test_id("fleet-health")).to_have_text("Ready")
    expect(page.get_by_test_id(f"job-row-{simulated_nodes.job}")).to_be_visible()
    assert axe.violations(page) == []


def test_a_job_whose_nodes_are_peers(simulated_nodes: SimulatedNodes, page: Page) -> None:
    page.goto(f"{simulated_nodes.running.url}/jobs/{simulated_nodes.job}")
    expect(page.get_by_test_id("topology-n0")).to_be_visible()
    expect(page.get_by_test_id("refusals").locator("li")).to_have_count(1)
    assert axe.violations(page) == []
    page.get_by_test_id("topology").get_by_role("option").first.focus()
    assert axe.violations(page) == [], "while a node is looked at"
    for title in ("Communication graph (bytes)", "Update coverage by model and node (share of rounds)"):
        page.get_by_role("button", name=f"{title}: show as table").click()
    assert axe.violations(page) == [], "as tables"


def test_the_configuration(simulated_nodes: SimulatedNodes, page: Page) -> None:
    """Reached with the arrow keys, and by its address."""
    page.goto(f"{simulated_nodes.running.url}/jobs/{simulated_nodes.job}")
    page.get_by_role("tab", name="Overview").press("ArrowLeft")
    expect(page.get_by_role("tab", name="Configuration")).to_be_focused()
    expect(page).to_have_url(f"{simulated_nodes.running.url}/jobs/{simulated_nodes.job}?view=configuration")
    page.reload()
    expect(page.get_by_role("region", name="Configuration")).to_contain_text("gossip.allowed")
    assert axe.violations(page) == []


def test_a_dialog(simulated_nodes: SimulatedNodes, page: Page) -> None:
    page.goto(f"{simulated_nodes.running.url}/jobs/{simulated_nodes.job}")
    page.get_by_test_id("sign-in").click()
    page.get_by_label("Token").fill(OPERATOR)
    assert axe.violations(page) == []
    page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
    page.get_by_test_id("stop").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert axe.violations(page) == []


def test_the_comparison(simulated_nodes: SimulatedNodes, page: Page) -> None:
    page.goto(f"{simulated_nodes.running.url}/compare?runs={simulated_nodes.job}")
    expect(page.get_by_test_id("compare-accuracy")).to_be_visible()
    assert axe.violations(page) == []


def test_a_new_job(simulated_nodes: SimulatedNodes, page: Page) -> None:
    page.goto(f"{simulated_nodes.running.url}/")
    sign_in(page)
    page.goto(f"{simulated_nodes.running.url}/new?from={simulated_nodes.job}")
    expect(page.get_by_test_id("start-job")).to_be_enabled()
    for summary in page.locator("summary").all():
        summary.click()
    assert axe.violations(page) == []
    page.get_by_label("lr").fill("fast")
    expect(page.get_by_test_id("start-job")).to_be_disabled()
    expect(page.get_by_text("unable to parse string as a number")).to_be_visible()
    assert axe.violations(page) == [], "with a mistake"
