"""A hundred runs over each other, in one request."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.coordinator.ended_runs import keep_run
from tests.dashboard.axe import violations
from tests.dashboard.screens import each_screen
from tests.support.coordinator import Inside, inside

pytestmark = [pytest.mark.timeout(300)]

COUNT = 100
ROUNDS = 60
NAMES = [f"run-{number:03}" for number in range(COUNT)]


def accuracies(number: int) -> list[float]:
    """Each run learns at a speed of its own, up to a height of its own."""
    height = 0.6 + 0.3 * number / COUNT
    return [height * (1 - math.exp(-(round_ + 1) / (5 + number % 10))) for round_ in range(ROUNDS)]


BEST = NAMES[max(range(COUNT), key=lambda number: accuracies(number)[-1])]


@pytest.fixture(scope="module")
def running(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """A coordinator that remembers them. (The browser is there first.)"""
    folder = tmp_path_factory.mktemp("many") / "data"
    with inside(folder) as first:
        for number, name in enumerate(NAMES):
            algorithm = {"name": "fedavg", "lr": 0.1 + number % 4 / 10}
            keep_run(first, name, accuracies(number), rounds=ROUNDS, algorithm=algorithm)
    with inside(folder) as made:
        yield made


@pytest.fixture
def address(running: Inside) -> str:
    return f"{running.url}/compare?runs={','.join(NAMES)}"


def rows(page: Page) -> Any:
    return page.get_by_test_id("compare-table").locator("tbody tr")


def test_a_hundred_runs_take_one_request(address: str, page: Page, errors: list[str]) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/api/v1/" in request.url else None)
    page.goto(address)
    expect(rows(page)).to_have_count(COUNT)
    for chart in ("accuracy", "loss"):
        expect(page.get_by_test_id(f"compare-{chart}").locator("canvas")).to_be_visible()
    expect(page.get_by_test_id("compare-accuracy")).to_contain_text("and 92 more in the table")
    about_runs = [url for url in asked if "run-" in url]
    assert all("/api/v1/compare?" in url for url in about_runs)
    expect(page.get_by_test_id("connection-banner")).to_have_attribute("data-state", "live")
    expect(page.get_by_test_id("compare-accuracy").locator(".readout")).to_contain_text("run-000")
    assert len(about_runs) == 1, "the stream's first word tells nothing new of them"
    assert not errors


def test_order_target_and_one_run_alone_are_in_the_address(address: str, page: Page) -> None:
    page.goto(address)
    page.get_by_role("button", name="Best").click()
    expect(rows(page).first).to_contain_text(BEST)
    page.get_by_test_id("target").fill("0.7")
    page.get_by_test_id("target").press("Enter")
    expect(page.get_by_role("button", name="Bytes to 70.0%")).to_be_visible()
    page.get_by_label("Highlight run-098").click()
    expect(page.get_by_test_id("compare-accuracy").locator(".readout")).to_contain_text("run-098")
    expect(page.get_by_test_id("compare-accuracy").locator(".readout")).not_to_contain_text("run-001")
    for part in ("sort=best", "target=0.7", "run=run-098"):
        assert part in page.url
    page.reload()
    expect(rows(page).first).to_contain_text(BEST)
    expect(page.get_by_label("Highlight run-098")).to_have_attribute("aria-pressed", "true")


def test_only_what_differs_is_shown(address: str, page: Page) -> None:
    page.goto(address)
    table = page.get_by_test_id("differing")
    expect(table.locator("thead th")).to_have_text(["Run", "algorithm.lr"])
    expect(table.locator("tbody tr").nth(3).locator("td")).to_have_text(["0.4"])


@each_screen
def test_everybody_can_read_it(running: Inside, browser: Browser, scheme: Any, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(f"{running.url}/compare?runs={','.join(NAMES[:12])}&run={NAMES[3]}")
    expect(rows(page)).to_have_count(12)
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
