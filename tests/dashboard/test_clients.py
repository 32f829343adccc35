"""Each client's work, in a real browser: the heat map, the lines, a round; live, and in a crowd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard import axe
from tests.dashboard.recorded_runs import diverging, record
from tests.dashboard.screens import each_screen
from tests.support.coordinator import Inside, inside
from tests.support.scenario import Stage, set_up, task_of

pytestmark = [pytest.mark.timeout(300)]

HOSTILE = ["<img src=x onerror=document.body.remove()>", "node-\u202egnp.exe", "x" * 4096]


@pytest.fixture(autouse=True)
def quiet(errors: list[str]) -> Iterator[None]:
    yield
    assert not errors


@pytest.fixture(scope="module")
def run(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """A run of twelve clients and sixty rounds, of which one diverges."""
    with inside(tmp_path_factory.mktemp("clients") / "data", lease_s=86_400.0) as running:
        running.begin("main", nodes=2, rounds=60, schedule={"quorum": 2, "deadline_s": 6.0})
        record(running, "main", 12, 60, diverging)
        running.begin("crowd", nodes=2, rounds=50)
        record(running, "crowd", 200, 50)
        running.begin("hostile", nodes=2, rounds=50)
        record(running, "hostile", 3, 5, names=HOSTILE)
        yield running


def clients(running: Inside, job: str = "main", query: str = "") -> str:
    return f"{running.url}/jobs/{job}?view=clients{query}"


def test_what_diverged_is_said_and_the_keyboard_reaches_it(run: Inside, page: Page) -> None:
    page.goto(clients(run))
    expect(page.get_by_test_id("heat")).to_contain_text("diverged")
    expect(page.get_by_test_id("heat")).to_contain_text("12 nodes × 60 columns")
    cells, here = page.get_by_test_id("heat-cells"), page.get_by_test_id("heat-here")
    cells.focus()
    cells.press("ArrowDown")  # the first key shows where one is
    expect(here).to_contain_text("client-0 · round 59")
    cells.press("ArrowDown")
    expect(here).to_have_text("client-1 · round 59 · diverged")
    for _ in range(49):
        cells.press("ArrowLeft")
    expect(here).to_contain_text("client-1 · round 10 · 0.")
    cells.press("Enter")
    expect(page).to_have_url(clients(run, query="&client=client-1"))
    expect(page.get_by_test_id("client-lines")).to_contain_text("client-1 diverged")
    page.reload()
    expect(page.get_by_test_id("selected-client")).to_contain_text("client-1")
    cells.press("Escape")
    expect(page).to_have_url(clients(run))


def test_fairness_and_influence_stand_beside_the_charts(run: Inside, page: Page) -> None:
    page.goto(clients(run))
    fairness, influence = page.get_by_test_id("fairness"), page.get_by_test_id("influence")
    expect(fairness).to_contain_text("Worst node")
    expect(influence).to_contain_text("Updates are refused above 100 times the median norm")
    expect(influence).to_contain_text("No update has been accepted or refused yet")
    page.get_by_test_id("metric").select_option("train/loss")
    expect(fairness).to_contain_text("train/loss: the last report of each node")


def test_a_click_on_a_line_shows_that_client_alone(run: Inside, page: Page) -> None:
    page.goto(clients(run, query="&metric=norm"))
    expect(page.get_by_test_id("heat")).to_contain_text("Update norm")
    page.get_by_test_id("metric").select_option("train_s")
    expect(page).to_have_url(clients(run, query="&metric=train_s"))
    plot = page.get_by_test_id("client-lines").locator(".u-over")
    box = plot.bounding_box()
    assert box is not None
    plot.click(position={"x": box["width"] / 2, "y": box["height"] * 0.05 + 6})  # the slowest: clients 4 and 9
    expect(page.get_by_test_id("selected-client")).to_contain_text("client-4")
    plot.click(position={"x": box["width"] / 2, "y": box["height"] / 2 + 12})
    expect(page.get_by_test_id("selected-client")).not_to_contain_text("client-4")


def test_a_round_with_its_phases_and_marks(run: Inside, page: Page) -> None:
    page.goto(clients(run, query="&round=7"))
    found = page.get_by_test_id("round")
    expect(found).to_contain_text("12 of 12 in 4 s")
    expect(found).to_contain_text("quorum of 2 at 2 s")
    expect(found).to_contain_text("deadline at 6 s")
    expect(found.get_by_role("listitem")).to_have_count(12)
    said = "waiting 50.0 ms, download 100 ms, training 1.5 s, upload 200 ms, aggregation 20.0 ms"
    expect(found.get_by_role("img").first).to_have_attribute("aria-label", f"reported at 1.9 s: {said}")
    page.get_by_role("button", name="Next").click()
    expect(page).to_have_url(clients(run, query="&round=8"))


def test_the_data_can_be_taken_away(run: Inside, page: Page) -> None:
    page.goto(clients(run))
    with page.expect_download() as started:
        page.get_by_role("button", name="train/loss by node and round: save as CSV").click()
    lines = Path(started.value.path()).read_text(encoding="utf-8").splitlines()
    assert len(lines) == 13
    assert lines[0].startswith("node,round 0,round 1,")
    assert lines[2].startswith("client-1,")
    assert lines[2].endswith(",NaN")


@each_screen
@pytest.mark.parametrize("job", ["main", "crowd", "hostile"])
def test_nothing_sticks_out(run: Inside, browser: Browser, scheme: Any, width: int, job: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(clients(run, job))
    expect(page.get_by_test_id("round").get_by_role("listitem").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_a_window_that_becomes_narrow_takes_the_charts_with_it(run: Inside, page: Page) -> None:
    for view, chart in (("overview", "chart-accuracy"), ("clients", "client-lines")):
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto(f"{run.url}/jobs/main?view={view}")
        expect(page.get_by_test_id(chart).locator("canvas")).to_be_visible()
        page.set_viewport_size({"width": 390, "height": 900})
        expect(page.get_by_test_id(chart).locator(".uplot")).to_have_js_property("offsetWidth", 332)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view


def test_two_hundred_clients(run: Inside, page: Page) -> None:
    page.goto(clients(run, "crowd"))
    expect(page.get_by_test_id("heat")).to_contain_text("200 nodes × 50 columns")
    expect(page.get_by_test_id("round").get_by_role("listitem")).to_have_count(200)
    cells = page.get_by_test_id("heat-cells")
    cells.press("ArrowUp")
    for _ in range(30):
        cells.press("PageDown")
    expect(page.get_by_test_id("heat-here")).to_contain_text("client-199")


def test_a_name_is_only_a_text(run: Inside, page: Page) -> None:
    page.goto(clients(run, "hostile"))
    expect(page.get_by_test_id("round")).to_contain_text(HOSTILE[0])
    expect(page.get_by_test_id("round")).to_contain_text("node-⟨202E⟩gnp.exe")
    page.get_by_role("button", name="train/loss by node and round: show as table").click()
    expect(page.get_by_test_id("heat")).to_contain_text(HOSTILE[0])
    assert page.locator("main img").count() == 0


@each_screen
def test_nothing_to_object_to(run: Inside, browser: Browser, scheme: Any, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(clients(run, query="&client=client-1"))
    expect(page.get_by_test_id("round").get_by_role("listitem")).to_have_count(12)
    page.get_by_test_id("heat-cells").press("ArrowRight")
    assert axe.violations(page) == []
    page.get_by_role("button", name="train/loss by node and round: show as table").click()
    assert axe.violations(page) == [], "as a table"
    page.close()


# Live


def two_report(stage: Stage) -> None:
    for node in stage.nodes[:2]:
        task, _ = task_of(node, stage.job)
        stage.tasks[node.node] = task
        answer = stage.report(node=node.node, metrics={"train/loss": 1.0 / (1 + task.version)})
        assert answer.status_code == 200, answer.text


def test_a_round_comes_without_a_reload(tmp_path: Path, page: Page) -> None:
    with inside(tmp_path / "data", lease_s=86_400.0) as running:
        stage = set_up(running)
        stage.dismiss("n2")  # so that each round is one of the other two
        page.goto(clients(running))
        page.evaluate("window.unchanged = true")
        expect(page.get_by_test_id("heat")).to_contain_text("No node has reported this metric yet")
        expect(page.get_by_test_id("round")).to_contain_text("0 of 2")
        for number in (1, 2):
            two_report(stage)
            columns = "1 column" if number == 1 else "2 columns"
            expect(page.get_by_test_id("heat")).to_contain_text(f"2 nodes × {columns}")
        expect(page.get_by_test_id("round")).to_contain_text("2 of 2 in")
        expect(page.get_by_test_id("influence").locator("tbody tr")).to_have_count(2)
        assert page.evaluate("window.unchanged") is True
        stage.close()
