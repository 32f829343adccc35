"""Two jobs that really ran, over each other in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.scenario import PATIENCE_MS, staged
from tests.dashboard.screens import each_screen

pytestmark = [pytest.mark.timeout(300)]

JOB = """
name = "digits"
rounds = 5

[algorithm]
name = "fedavg"
lr = 0.2

[schedule]
name = "rounds"
min_nodes = 2
"""
RUNS = ("digits-fedavg", "digits-fedsgd")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, Any]]]:
    """The address of a coordinator that has run a job under two presets with two nodes, and the command's table."""
    place = tmp_path_factory.mktemp("compare")
    (place / "job.toml").write_text(JOB)
    with staged(place, 2) as made:
        yield made.address, made.asked("run", "job.toml", "--compare", "fedavg,fedsgd")["comparison"]


@pytest.fixture
def address(stage: tuple[str, dict[str, Any]]) -> str:
    return stage[0]


@pytest.fixture
def table(stage: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return stage[1]


@pytest.fixture(autouse=True)
def quiet(errors: list[str]) -> Iterator[None]:
    yield
    assert not errors


def test_from_the_list_to_the_comparison(address: str, table: dict[str, Any], page: Page) -> None:
    page.goto(address)
    for run in RUNS:
        page.get_by_role("checkbox", name=f"Compare {run}").check(timeout=PATIENCE_MS)
    page.get_by_test_id("compare").click()
    expect(page).to_have_url(f"{address}/compare?runs={','.join(RUNS)}")
    rows = page.get_by_test_id("compare-table").locator("tbody tr")
    expect(rows).to_have_count(2, timeout=PATIENCE_MS)
    for row, known in zip(rows.all(), table["rows"], strict=True):
        cells = [cell.strip() for cell in row.locator("td").all_inner_texts()]
        assert known["run"] in row.locator("th").inner_text()
        assert cells[0] == f"{100 * known['final']:.1f}%"
        assert cells[1] == f"{100 * known['best']:.1f}%"
        assert cells[2] == "5"
        assert (cells[5] == "–") == (known["bytes_to_target"] is None)
    for chart in ("accuracy", "loss"):
        expect(page.get_by_test_id(f"compare-{chart}").locator("canvas")).to_be_visible()


def test_each_node_has_its_price(address: str, table: dict[str, Any], page: Page) -> None:
    """Bytes to the target, which no longer change; late polls may still be added to the sums."""
    page.goto(f"{address}/compare?runs={','.join(RUNS)}&target={table['target']}")
    rows = page.get_by_test_id("compare-nodes").locator("tbody tr")
    known = [(row["run"], node) for row in table["rows"] for node in row["nodes"]]
    expect(rows).to_have_count(len(known), timeout=PATIENCE_MS)
    assert len([node for _, node in known if node["node"]]) == 4
    for row, (run, node) in zip(rows.all(), known, strict=True):
        cells = [cell.strip() for cell in row.locator("td").all_inner_texts()]
        assert run in row.locator("th").inner_text()
        assert cells[0] == (node["node"] or "(no node)")
        for cell, name in ((cells[3], "up_bytes_to_target"), (cells[4], "down_bytes_to_target")):
            assert in_bytes(cell) == pytest.approx(node[name], rel=0.01)


def in_bytes(cell: str) -> float:
    """19.3 kB as a number."""
    number, unit = cell.split()
    return float(number) * {"B": 1, "kB": 1e3, "MB": 1e6}[unit]


def test_the_axis_is_in_the_address(address: str, page: Page) -> None:
    page.goto(f"{address}/compare?runs={','.join(RUNS)}")
    page.get_by_test_id("axis-bytes").click(timeout=PATIENCE_MS)
    expect(page).to_have_url(f"{address}/compare?runs={','.join(RUNS)}&x=bytes".replace(",", "%2C"))
    expect(page.get_by_test_id("compare-accuracy").get_by_role("img")).to_have_attribute(
        "aria-label", re.compile(rf"^Accuracy .*\(%\) by bytes up and down of {', '.join(RUNS)}$")
    )


@each_screen
def test_nothing_sticks_out(address: str, browser: Browser, scheme: Any, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    for place in (f"{address}/compare?runs={','.join(RUNS)}", address):
        page.goto(place)
        expect(page.get_by_text(RUNS[1]).first).to_be_visible(timeout=PATIENCE_MS)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_an_unknown_job_is_said(address: str, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(f"{address}/compare?runs={RUNS[0]},gone")
    expect(page.get_by_role("alert")).to_contain_text("gone", timeout=PATIENCE_MS)
    page.close()
