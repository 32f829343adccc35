"""The tab of a network with exits: the fraction that each level answers, against the threshold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard import axe
from tests.dashboard.recorded_runs import record
from tests.support.coordinator import Inside, inside

pytestmark = [pytest.mark.timeout(300)]

MEASURED = {
    f"eval/{name}@{step / 10}": value
    for step in range(11)
    for name, value in (
        ("accuracy", 0.97 - step / 100),
        ("answered_device", step / 10),
        ("answered_edge", (1 - step / 10) / 4),
    )
}


@pytest.fixture(scope="module")
def run(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """A job whose versions have a curve, and one without. (Without a browser there is nothing to do.)"""
    with inside(tmp_path_factory.mktemp("exits") / "data", lease_s=86_400.0) as running:
        for name, measured in (("exits", MEASURED), ("other", {})):
            running.begin(name, nodes=2, rounds=5)
            record(running, name, 2, 5, measured=measured)
        yield running


def test_the_tab_shows_each_level_against_the_threshold(page: Page, run: Inside, errors: list[str]) -> None:
    page.goto(f"{run.url}/jobs/exits")
    page.get_by_role("tab", name="Exits").click()
    chart = page.get_by_test_id("chart-exits")
    expect(chart.locator(".readout-item")).to_have_text(
        ["device 50.0%", "edge 12.5%", "cloud 37.5%", "accuracy 92.0%"], use_inner_text=True
    )
    expect(chart.locator(".readout-place")).to_have_text("threshold 0.5 of all exits · round 5")
    assert axe.violations(page) == []
    chart.get_by_role("button", name="show as table").click()
    expect(chart.get_by_role("row")).to_have_count(12)
    page.goto(f"{run.url}/jobs/exits?left=loss&right=accuracy")
    expect(page.get_by_test_id("chart-accuracy")).to_be_visible()
    assert page.get_by_test_id("kind-left").count() == 0, "two kinds of metric: nothing to choose"
    page.goto(f"{run.url}/jobs/exits?view=clients")
    expect(page.get_by_test_id("metric").locator("option")).not_to_have_count(0)
    assert [text for text in page.get_by_test_id("metric").locator("option").all_inner_texts() if "@" in text] == []
    assert errors == []


def test_other_jobs_have_no_such_tab(page: Page, run: Inside) -> None:
    page.goto(f"{run.url}/jobs/other")
    expect(page.get_by_test_id("chart-accuracy")).to_be_visible()
    assert page.get_by_role("tab", name="Exits").count() == 0
