"""What axe-core finds on pages that are full of figures: nothing, in either theme and on a narrow screen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.coordinator.server import OPERATOR, inside
from tests.dashboard.crowd import Crowd
from tests.dashboard.stage import PATIENCE_MS

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

AXE = Path(__file__).parents[2] / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"
FIND = """axe.run().then(({ violations }) =>
    violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map(({ html }) => html).join(" ")}`))"""
SCREENS = [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]


@pytest.fixture(scope="module")
def axe(browser: Browser) -> str:
    """The script, which is put into the page past its policy. (Without a browser there is nothing to do.)"""
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: npm ci in dashboard/")
    return AXE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def crowd(axe: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    """A job that its nodes carry on, each in another state; they have exchanged and refused something."""
    with inside(tmp_path_factory.mktemp("accessible") / "data", lease_s=86_400.0) as running:
        made = Crowd(running, 5)
        running.post(f"/jobs/{made.job}/switch", {"to": "gossip"})
        made.go("away")
        made.learn()
        made.mix(6)
        made.members[1].refused = {"trust.signature": 3}
        for one, state in zip(made.members[2:], ("suspect", "handover", "coordinated"), strict=True):
            one.state = state
        made.tell()
        yield made
        made.close()


@pytest.fixture(params=SCREENS, ids=lambda screen: f"{screen[0]}-{screen[1]}")
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    scheme, width = request.param
    opened = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    opened.set_default_timeout(PATIENCE_MS)
    yield opened
    opened.close()


def violations(page: Page, axe: str) -> Any:
    page.evaluate(axe)
    return page.evaluate(FIND)


def test_the_list_of_jobs(crowd: Crowd, axe: str, page: Page) -> None:
    page.goto(crowd.running.url)
    expect(page.get_by_test_id("fleet-health")).to_have_text("Ready")
    expect(page.get_by_test_id(f"job-row-{crowd.job}")).to_be_visible()
    assert violations(page, axe) == []


def test_a_job_whose_nodes_are_peers(crowd: Crowd, axe: str, page: Page) -> None:
    page.goto(f"{crowd.running.url}/jobs/{crowd.job}")
    expect(page.get_by_test_id("topology-n0")).to_be_visible()
    expect(page.get_by_test_id("refusals").locator("li")).to_have_count(1)
    assert violations(page, axe) == []
    page.get_by_test_id("topology").get_by_role("option").first.focus()
    assert violations(page, axe) == [], "while a node is looked at"
    for title in ("Who talks to whom", "Whose rounds each model holds"):
        page.get_by_role("button", name=f"{title}: show as table").click()
    assert violations(page, axe) == [], "as tables"


def test_a_dialog(crowd: Crowd, axe: str, page: Page) -> None:
    page.goto(f"{crowd.running.url}/jobs/{crowd.job}")
    page.get_by_test_id("sign-in").click()
    page.get_by_label("Token").fill(OPERATOR)
    assert violations(page, axe) == []
    page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
    page.get_by_test_id("stop").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert violations(page, axe) == []


def test_the_comparison(crowd: Crowd, axe: str, page: Page) -> None:
    page.goto(f"{crowd.running.url}/compare?runs={crowd.job}")
    expect(page.get_by_test_id("compare-accuracy")).to_be_visible()
    assert violations(page, axe) == []
