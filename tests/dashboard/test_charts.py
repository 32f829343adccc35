"""The charts of a job: axes, scales, smoothing and zoom, all of it in the address; and what they do in a live run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard import axe
from tests.dashboard.recorded_runs import diverging, record
from tests.dashboard.screens import each_screen
from tests.support.coordinator import Inside, inside
from tests.support.scenario import SIZE, Stage, by_hand, task_of

pytestmark = [pytest.mark.timeout(300)]

COUNT_DRAWINGS = """
const clear = CanvasRenderingContext2D.prototype.clearRect;
window.drawings = [];
CanvasRenderingContext2D.prototype.clearRect = function (...where) {
    if (this.canvas.closest('[data-testid="chart-accuracy"]')) window.drawings.push(performance.now());
    return clear.apply(this, where);
};
"""

# Only a band's fill has the opacity 0x2b of 255, apart from rounding.
IN_BAND = """(canvas) => {
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    return pixels.filter((part, index) => index % 4 === 3 && Math.abs(part - 0x2b) < 3).length;
}"""


@pytest.fixture(autouse=True)
def quiet(errors: list[str]) -> Iterator[None]:
    yield
    assert not errors


@pytest.fixture(scope="module")
def run(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """Sixty rounds; the loss diverges at the twelfth. (The browser is first: without one there is nothing to do.)"""
    with inside(tmp_path_factory.mktemp("charts") / "data", lease_s=86_400.0) as running:
        running.begin("main", nodes=2, rounds=60)
        record(running, "main", 2, 60, diverging)
        running.begin("wide", nodes=12, rounds=40)
        record(running, "wide", 12, 40)
        yield running


def hover(page: Page, chart: str, share: float) -> str:
    """Return the legend of a chart while the pointer is at that share of its width."""
    plot = page.get_by_test_id(chart).locator(".u-over")
    box = plot.bounding_box()
    assert box is not None
    plot.hover(position={"x": 1 + share * (box["width"] - 2), "y": box["height"] / 2})
    return page.get_by_test_id(chart).locator(".readout-place").inner_text()


def drag(page: Page, chart: str, first: float, last: float) -> None:
    """Zoom in, from one share of the width to another."""
    page.get_by_test_id(chart).scroll_into_view_if_needed()
    box = page.get_by_test_id(chart).locator(".u-over").bounding_box()
    assert box is not None
    places = [box["x"] + share * box["width"] for share in (first, last)]
    page.mouse.move(places[0], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(places[1], box["y"] + 50, steps=4)
    page.mouse.up()


def test_every_control_is_in_the_address(run: Inside, page: Page) -> None:
    page.goto(f"{run.url}/jobs/main")
    page.get_by_test_id("log-y").check()
    page.get_by_test_id("log-x").check()
    page.get_by_test_id("smooth").select_option("heavy")
    expect(page).to_have_url(f"{run.url}/jobs/main?yscale=log&xscale=log&smooth=heavy")
    page.reload()
    expect(page.get_by_test_id("log-y")).to_be_checked()
    expect(page.get_by_test_id("log-x")).to_be_checked()
    expect(page.get_by_test_id("smooth")).to_have_value("heavy")
    assert hover(page, "chart-loss", 0) == "round 1", "a logarithmic axis has no place for round 0"
    page.get_by_test_id("axis-clock").click()
    expect(page.get_by_test_id("log-x")).to_be_disabled()
    at = hover(page, "chart-accuracy", 1)
    assert re.fullmatch(r"round 60 · 21 Sept? \d\d:\d\d \(\d\d:\d\d:\d\d UTC\)", at)
    page.get_by_test_id("axis-time").click()
    assert hover(page, "chart-accuracy", 1) == "round 60 · 4 m 00 s"


def test_a_zoom_is_in_the_address_and_shared(run: Inside, page: Page) -> None:
    page.goto(f"{run.url}/jobs/main")
    drag(page, "chart-accuracy", 0.25, 0.5)
    expect(page).to_have_url(re.compile(r"\?zoom=15[.\d]*_30[.\d]*$"))
    assert hover(page, "chart-loss", 0) == "round 15"
    page.reload()
    expect(page.get_by_test_id("reset-zoom")).to_be_visible()
    assert [hover(page, "chart-loss", 0), hover(page, "chart-accuracy", 1)] == ["round 15", "round 30"]
    page.get_by_test_id("reset-zoom").click()
    expect(page).to_have_url(f"{run.url}/jobs/main")
    assert hover(page, "chart-loss", 1) == "round 60"
    drag(page, "chart-accuracy", 0.5, 0.75)
    page.get_by_test_id("axis-bytes").click()
    expect(page).to_have_url(f"{run.url}/jobs/main?x=bytes")


def test_the_other_charts_keep_their_zooms_in_the_address_as_well(run: Inside, page: Page) -> None:
    page.goto(f"{run.url}/jobs/main")
    drag(page, "chart-bytes", 0.25, 0.5)
    expect(page).to_have_url(re.compile(r"\?zoom\.bytes=15[.\d]*_30[.\d]*$"))
    page.reload()
    assert hover(page, "chart-bytes", 1) == "round 30"
    page.get_by_test_id("chart-bytes").get_by_test_id("reset-zoom").click()
    expect(page).to_have_url(f"{run.url}/jobs/main")
    assert hover(page, "chart-bytes", 1) == "round 60"
    page.goto(f"{run.url}/jobs/main?view=clients")
    drag(page, "client-lines", 0.25, 0.5)
    expect(page).to_have_url(re.compile(r"&zoom\.clients=1[45][.\d]*_(29|30)[.\d]*$"))
    page.reload()
    assert int(hover(page, "client-lines", 1).removeprefix("round ")) in (29, 30)


def test_nodes_lie_around_the_mean_and_one_of_them_stands_out(run: Inside, page: Page) -> None:
    page.goto(f"{run.url}/jobs/wide")
    loss = page.get_by_test_id("chart-loss")
    expect(loss.locator(".readout")).to_contain_text("10–90 %")
    bands = run.get("/jobs/wide/reports/quantiles", metric="train/loss")
    low, high = (f"{bands[edge][-1]:.3g}" for edge in ("low", "high"))
    hover(page, "chart-loss", 39 / 40)  # no node has trained on the last version
    expect(loss.locator(".readout")).to_contain_text(f"{low} – {high}")
    assert loss.locator("canvas").evaluate(IN_BAND) > 1000
    plot = loss.locator(".u-over")
    box = plot.bounding_box()
    assert box is not None
    line = run.get("/jobs/wide/nodes/client-5/reports/series", metric="train/loss")
    plot.click(position={"x": 2, "y": 0.05 * box["height"]})
    expect(page).to_have_url(re.compile(r"[?&]client=client-5$"))
    hover(page, "chart-loss", 39 / 40)
    expect(loss.locator(".readout")).to_contain_text(f"client-5 {line['values'][-1]:.3g}")
    page.reload()
    expect(loss.locator(".readout")).to_contain_text("client-5")
    hover(page, "chart-loss", 39 / 40)
    expect(loss.locator(".readout")).to_contain_text(f"client-5 {line['values'][-1]:.3g}")
    with page.expect_download() as started:
        loss.get_by_role("button", name="save as CSV").click()
    header = Path(started.value.path()).read_text(encoding="utf-8").splitlines()[0]
    assert header == "round,elapsed_s,total_bytes,train/loss,10 % of nodes,90 % of nodes,client-5"
    plot.click(position={"x": box["width"] / 2, "y": 0.05 * box["height"]})  # no line is up there
    expect(page).to_have_url(f"{run.url}/jobs/wide")
    expect(loss.locator(".readout")).not_to_contain_text("client-5")


@each_screen
def test_everybody_can_read_them(run: Inside, browser: Browser, scheme: str, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(f"{run.url}/jobs/main?yscale=log&smooth=medium&zoom=5_50")
    expect(page.get_by_test_id("reset-zoom")).to_be_visible()
    expect(page.get_by_test_id("chart-loss")).to_contain_text("diverged")
    assert axe.violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


# Live


@pytest.fixture
def stage(browser: Browser, tmp_path: Path) -> Iterator[Stage]:
    """Two nodes in a job of many rounds."""
    with inside(tmp_path / "data", lease_s=86_400.0) as running:
        running.begin("main", nodes=2, rounds=60)
        made = Stage(running, "main", [by_hand(running, name, {"main": SIZE}) for name in ("n0", "n1")])
        task, _ = task_of(made.nodes[0], "main")
        assert made.nodes[0].report("main", task).counted
        yield made
        made.close()


def rounds(stage: Stage, number: int) -> None:
    for _ in range(number):
        for node in stage.nodes:
            stage.tasks[node.node], _ = task_of(node, stage.job)
            version = stage.tasks[node.node].version
            found = stage.report(node=node.node, metrics={"eval/accuracy": 1 - 0.9**version})
            assert found.status_code == 200, found.text


def test_the_zoom_stays_when_rounds_come(stage: Stage, page: Page) -> None:
    rounds(stage, 5)
    page.goto(f"{stage.running.url}/jobs/main")
    expect(page.get_by_test_id("version-count")).to_contain_text("5 of 60")
    drag(page, "chart-accuracy", 0.15, 0.65)
    before = [hover(page, "chart-accuracy", share) for share in (0, 1)]
    assert before == ["round 1", "round 3"]
    address = page.url
    rounds(stage, 3)
    expect(page.get_by_test_id("version-count")).to_contain_text("8 of 60")
    assert [hover(page, "chart-accuracy", share) for share in (0, 1)] == before
    assert page.url == address
    page.get_by_test_id("reset-zoom").click()
    assert hover(page, "chart-accuracy", 1) == "round 8"


def test_a_chart_is_drawn_four_times_a_second_at_most(stage: Stage, page: Page) -> None:
    rounds(stage, 2)
    page.add_init_script(COUNT_DRAWINGS)
    page.goto(f"{stage.running.url}/jobs/main")
    expect(page.get_by_test_id("version-count")).to_contain_text("2 of 60")
    expect(page.get_by_test_id("connection-banner")).to_have_attribute("data-state", "live")
    page.wait_for_function("() => performance.now() - window.drawings.at(-1) > 500")  # it has come to its size
    page.evaluate("void (window.drawings.length = 0)")
    rounds(stage, 30)
    expect(page.get_by_test_id("version-count")).to_contain_text("32 of 60")
    first, *others = page.evaluate("window.drawings")
    assert others, "it is drawn while rounds come"
    assert len(others) <= (others[-1] - first) / 250 + 1
