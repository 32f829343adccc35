"""How pages load and are walked through: nothing twice, nothing missing in an outage, and Back goes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.dashboard.recorded_runs import record
from tests.dashboard.scenario import PATIENCE_MS
from tests.dashboard.sign_in import sign_in
from tests.support.coordinator import Inside, inside
from tests.support.scenario import set_up

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture
def running(browser: Browser, tmp_path: Path) -> Iterator[Inside]:
    """A coordinator with a job. (The browser is there first: without one there is nothing to do.)"""
    with inside(tmp_path / "data", lease_s=86_400.0) as made:
        stage = set_up(made)
        yield made
        stage.close()


def live(page: Page) -> None:
    expect(page.get_by_test_id("connection-banner")).to_have_attribute("data-state", "live")


def loaded(page: Page, *parts: str) -> None:
    """Wait until files of these names are there, which the page fetches when it has nothing else to do."""
    for part in parts:
        script = f"() => performance.getEntriesByType('resource').some((it) => it.name.includes('/{part}-'))"
        for _ in range(PATIENCE_MS // 100):
            if page.evaluate(script):
                break
            page.wait_for_timeout(100)
        else:
            raise AssertionError(f"{part} was never loaded")


@pytest.mark.parametrize("path", ["/", "/jobs/main"])
def test_a_page_asks_for_nothing_twice_and_files_come_compressed(running: Inside, page: Page, path: str) -> None:
    asked: Counter[str] = Counter()
    page.on("request", lambda request: asked.update([request.url.removeprefix(running.url)]))
    with page.expect_response("**/assets/index-*.js") as found:
        page.goto(running.url + path)
    assert found.value.headers["content-encoding"] in ("br", "gzip")
    assert "immutable" in found.value.headers["cache-control"]
    live(page)
    expect(page.get_by_text("main").first).to_be_visible()
    loaded(page, "LogsPage")
    twice = {url: count for url, count in asked.items() if count > 1}
    assert not twice


def test_views_that_nobody_has_opened_yet_open_in_an_outage(running: Inside, page: Page, errors: list[str]) -> None:
    page.goto(f"{running.url}/jobs/main")
    live(page)
    loaded(page, "NodesPage", "ClientsTab", "LogsTab", "Configuration", "PeersPanel")
    page.route("**/*", lambda route: route.abort())
    for name in ("Configuration", "Node reports", "Logs"):
        page.get_by_role("tab", name=name).click()
        expect(page.get_by_role("tabpanel")).not_to_contain_text("Loading")
        expect(page.get_by_test_id("part-failed")).to_have_count(0)
    page.get_by_role("link", name="Nodes").first.click()
    expect(page.get_by_role("heading", name="Nodes").first).to_be_visible()
    assert not [said for said in errors if "Failed to load resource" not in said]


def test_a_part_that_cannot_be_loaded_says_so_and_can_be_tried_again(running: Inside, page: Page) -> None:
    down = True

    def answer(route: Route) -> None:
        route.abort() if down and "Configuration" in route.request.url else route.continue_()

    page.route("**/assets/**", answer)
    page.goto(f"{running.url}/jobs/main?view=configuration")
    failed = page.get_by_test_id("part-failed")
    expect(failed).to_contain_text("could not be loaded")
    expect(page.get_by_role("tab", name="Overview")).to_be_visible()
    down = False
    failed.get_by_role("button", name="Retry").click()
    expect(page.get_by_role("tabpanel")).to_contain_text("algorithm")


def test_tabs_are_steps_of_the_history(running: Inside, page: Page) -> None:
    page.goto(f"{running.url}/jobs/main")
    live(page)
    tab = {name: page.get_by_role("tab", name=name) for name in ("Overview", "Models", "Logs")}
    tab["Models"].click()
    tab["Logs"].click()
    expect(tab["Logs"]).to_have_attribute("aria-selected", "true")
    for name in ("Models", "Overview"):
        page.go_back()
        expect(tab[name]).to_have_attribute("aria-selected", "true")
    page.go_forward()
    expect(tab["Models"]).to_have_attribute("aria-selected", "true")


def test_a_session_that_has_ended_says_so_and_begins_anew_where_one_is(running: Inside, page: Page) -> None:
    page.goto(f"{running.url}/jobs/main")
    sign_in(page)
    page.context.clear_cookies()
    page.get_by_role("button", name="Pause").click()
    page.get_by_test_id("confirm").click()
    dialog = page.get_by_role("dialog").first
    expect(dialog).to_contain_text("Your session has expired")
    expect(dialog).not_to_contain_text("Bearer")
    dialog.get_by_role("button", name="Sign in again").click()
    page.get_by_label("Token").fill("sho_test")
    page.get_by_role("button", name="Sign in", exact=True).last.click()
    expect(page.get_by_label("Token")).to_have_count(0)
    page.get_by_test_id("confirm").click()
    expect(page.get_by_test_id("job-state")).to_have_attribute("data-state", "paused")


def test_a_chart_is_saved_as_svg_and_png_and_printed_in_light(
    running: Inside, browser: Browser, tmp_path: Path
) -> None:
    page = browser.new_page(color_scheme="dark", viewport={"width": 1280, "height": 1000})
    page.set_default_timeout(PATIENCE_MS)
    running.begin("other", nodes=1)
    record(running, "other", 3, 20)
    page.goto(f"{running.url}/compare?runs=main,other&smooth=medium&yscale=log")
    for control in ("log-x", "log-y", "smooth"):
        expect(page.get_by_test_id(control)).to_be_visible()
    expect(page.get_by_test_id("axis-time")).to_contain_text("from start")
    page.goto(f"{running.url}/jobs/other")
    saved = {}
    for kind in ("SVG", "PNG"):
        with page.expect_download() as found:
            page.get_by_test_id("chart-loss").get_by_label(f"save as {kind}").click()
        found.value.save_as(tmp_path / kind)
        saved[kind] = (tmp_path / kind).read_bytes()
    assert saved["PNG"].startswith(b"\x89PNG")
    texts = [element.text for element in ET.fromstring(saved["SVG"]).iter() if element.tag.endswith("text")]
    assert {"Loss in training by round", "Loss in training", "Round"} <= set(texts)  # the title, the axes
    assert "0" in texts  # of an axis
    assert saved["SVG"].count(b"<path") > 3
    theme = page.locator("html")
    expect(theme).to_have_attribute("data-theme", "dark")
    page.evaluate(
        "window.printed = [];"
        "addEventListener('beforeprint', () => printed.push(document.documentElement.dataset.theme))"
    )
    page.pdf()
    assert page.evaluate("window.printed") == ["light"]
    expect(theme).to_have_attribute("data-theme", "dark")
    page.emulate_media(media="print")
    expect(page.get_by_role("navigation").first).to_be_hidden()
    expect(page.get_by_test_id("chart-loss").locator("canvas")).to_be_visible()
    expect(page.get_by_test_id("events")).to_have_css("contain", "none")  # it grows with its list, above the nodes
    page.close()


def test_the_list_of_jobs_is_sorted_and_filtered(running: Inside, page: Page) -> None:
    for name, algorithm in (("b2", "fedprox"), ("b10", "fedavg")):
        running.begin(name, nodes=1, algorithm={"name": algorithm})
    page.goto(running.url)
    rows = page.locator("tbody .job-link")
    page.get_by_role("button", name="Job", exact=True).click()
    expect(rows).to_have_text(["b2", "b10", "main"])
    page.get_by_role("button", name="Job", exact=True).click()
    expect(rows).to_have_text(["main", "b10", "b2"])
    page.get_by_test_id("jobs-algorithm").select_option("fedprox")
    expect(rows).to_have_text(["b2"])
    page.reload()
    expect(rows).to_have_text(["b2"])


def test_of_a_long_table_only_the_rows_on_the_screen_are_there(running: Inside, page: Page) -> None:
    known = running.get("/nodes")["nodes"][0]
    simulated_nodes = [{**known, "name": f"node-{number:03}"} for number in range(300)]
    page.route("**/api/v1/nodes?*", lambda route: route.fulfill(json={"nodes": simulated_nodes, "next": None}))
    page.goto(f"{running.url}/nodes")
    rows = page.locator("[data-testid^=fleet-row-]")
    expect(page.get_by_test_id("fleet-row-node-000")).to_be_visible()
    expect(page.get_by_test_id("fleet-table")).to_have_attribute("aria-rowcount", "301")
    assert rows.count() < 100
    page.mouse.move(600, 600)
    for _ in range(100):
        page.mouse.wheel(0, 4000)
        if page.get_by_test_id("fleet-row-node-299").count():
            break
        page.wait_for_timeout(50)
    expect(page.get_by_test_id("fleet-row-node-299")).to_be_in_viewport()
    assert rows.count() < 100
    expect(page.get_by_test_id("fleet-row-node-000")).to_have_count(0)
