"""The log in a browser: as it grows, a hundred thousand lines of it, searched, walked with keys, whatever it says."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard import axe
from tests.dashboard.scenario import PATIENCE_MS, staged
from tests.dashboard.screens import each_screen
from tests.support.coordinator import Inside, inside
from tests.support.ports import free_port

pytestmark = [pytest.mark.timeout(300)]

HOSTILE = "<img src=x onerror=\"document.title='hacked'\"> \u202egnp.exe \x1b[2J" + "w" * 3000
MANY = 100_000
EVERY = 5_000
"""One of many lines holds the search text."""


def write(running: Inside, texts: list[str], node: str = "ada", process: str = "1", **more: Any) -> None:
    """Lines that a node has logged."""
    plain = {"at": time.time(), "node": node, "job": "", "round": None, "level": 20, "fields": {}}
    plain |= {"incarnation": process, **more}
    rows = [{**plain, "text": text, "number": number} for number, text in enumerate(texts)]
    coordinator = running.coordinator

    async def put() -> None:
        async with coordinator.telemetry.log_store.writing:
            await coordinator.database.write(lambda c: coordinator.telemetry.log_store.write(c, rows))
        if len(texts) < MANY:
            coordinator.telemetry.log_store.take(node, "2", [], 1)  # so that those who follow hear of it

    running.call(put())


@pytest.fixture
def running(browser: Browser, tmp_path: Path) -> Iterator[Inside]:
    """A coordinator. (The browser is there first: without one there is nothing to do.)"""
    with inside(tmp_path / "data") as made:
        yield made


@pytest.fixture(scope="module")
def long(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """One with a long log."""
    with inside(tmp_path_factory.mktemp("long") / "data") as made:
        write(made, [f"step {n}" + (" needle" if n % EVERY == 0 else "") for n in range(MANY)])
        yield made


def opened(page: Page, running: Inside, more: str = "") -> Page:
    page.goto(f"{running.url}/logs?node=ada{more}")
    expect(page.get_by_test_id("connection-banner")).to_have_attribute("data-state", "live")
    return page


def test_lines_appear_as_they_are_written_and_are_only_text(running: Inside, page: Page, errors: list[str]) -> None:
    opened(page, running)
    expect(page.get_by_text("No log lines yet")).to_be_visible()
    write(running, [HOSTILE], level=40, fields={"<b>why</b>": "\u202eno data"})
    row = page.locator(".log-line").first
    expect(row).to_contain_text("<img src=x")
    for part in ("error", "ada", "⟨202E⟩gnp.exe", "⟨001B⟩[2J"):
        expect(row).to_contain_text(part)
    row.click()
    expect(page.get_by_test_id("log-detail")).to_contain_text("<b>why</b>")
    assert page.locator(".log img").count() == 0
    assert page.title() == "Logs · shoal"
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert not errors


def test_the_end_is_followed_until_one_looks_elsewhere(running: Inside, page: Page) -> None:
    write(running, [f"line {n}" for n in range(500)])
    opened(page, running)
    listed = page.get_by_test_id("log-list")
    expect(page.get_by_text("line 499", exact=True)).to_be_visible()
    write(running, ["and another"], process="3")
    expect(page.get_by_text("and another")).to_be_visible()
    listed.evaluate("box => { box.scrollTop = 0 }")
    expect(page.get_by_role("button", name="Follow")).to_have_attribute("aria-pressed", "false")
    assert "follow=off" in page.url
    expect(page.get_by_text("line 3", exact=True)).to_be_visible()
    write(running, ["the last"], process="4")
    expect(listed).to_have_attribute("data-lines", re.compile(r"50[4-9]"))  # and those that tell of what was dropped
    expect(page.get_by_text("line 3", exact=True)).to_be_visible()
    page.get_by_role("button", name="Follow").click()
    expect(page.get_by_text("the last")).to_be_visible()


def test_a_hundred_thousand_lines_are_searched(long: Inside, page: Page, errors: list[str]) -> None:
    opened(page, long)
    expect(page.get_by_text(f"step {MANY - 1}", exact=True)).to_be_visible()
    assert page.locator(".log-line").count() < 100
    page.get_by_label("Search").fill("NEEDLE")
    total = MANY // EVERY
    count = page.get_by_test_id("log-count")
    expect(count).to_have_text(re.compile(str(total)))
    assert "q=NEEDLE" in page.url  # and the newest is shown without being asked for
    expect(count).to_have_text(f"{total}/{total}")
    expect(page.locator(".log-line[aria-selected=true]")).to_contain_text(f"step {MANY - EVERY} needle")
    expect(page.locator(".log-line[aria-selected=true] mark")).to_have_text("needle")
    page.get_by_label("Next match").click()  # round to the first: everything between is fetched
    expect(count).to_have_text(f"1/{total}")
    expect(page.locator(".log-line[aria-selected=true]")).to_contain_text("step 0 needle")
    expect(page.get_by_test_id("log-list")).to_have_attribute("data-lines", str(MANY))
    assert page.locator(".log-line").count() < 100
    write(long, ["one too many"], process="9")
    expect(page.get_by_test_id("log")).to_contain_text("older than the newest 100,000")
    page.get_by_label("Previous match").click()
    expect(page.locator(".log-line[aria-selected=true]")).to_contain_text(f"step {MANY - EVERY} needle")
    assert not errors


def test_a_log_is_walked_with_keys_alone(running: Inside, page: Page) -> None:
    write(running, [f"step {n}" + (" needle" if n == 40 else "") for n in range(100)], process="3")
    opened(page, running, "&q=needle&level=info")
    expect(page.get_by_test_id("log-count")).to_have_text("1")
    page.get_by_label("Search").focus()
    page.keyboard.press("Enter")
    detail = page.get_by_test_id("log-detail")
    expect(detail).to_contain_text("step 40 needle")
    for _ in range(4):  # the two arrows, Follow, the list
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    expect(detail).to_contain_text("step 41")
    page.keyboard.press("Home")
    expect(detail).to_contain_text("step 0")
    page.keyboard.press("PageDown")
    expect(detail).to_contain_text("step 15")
    expect(page.locator(".log-line[aria-selected=true]")).to_be_in_viewport()


def test_levels_and_nodes_are_in_the_address(running: Inside, page: Page) -> None:
    write(running, ["quiet"], level=10)
    write(running, ["loud"], process="3", level=40)
    opened(page, running, "&level=debug")
    expect(page.get_by_text("quiet")).to_be_visible()
    page.get_by_label("Level").select_option("error")
    expect(page.get_by_text("loud")).to_be_visible()
    expect(page.get_by_text("quiet")).to_have_count(0)
    assert "level=error" in page.url
    page.goto(f"{running.url}/logs?node=@coordinator")
    expect(page.get_by_label("Node")).to_have_value("@coordinator")
    expect(page.get_by_text("loud")).to_have_count(0)


def test_it_goes_on_after_the_coordinator_was_gone(browser: Browser, tmp_path: Path, page: Page) -> None:
    folder, port = tmp_path / "data", free_port()
    with inside(folder, port=port) as running:
        write(running, ["before"])
        opened(page, running)
        expect(page.get_by_text("before")).to_be_visible()
    expect(page.get_by_test_id("connection-banner")).not_to_have_attribute("data-state", "live")
    with inside(folder, port=port) as running:
        write(running, ["after"], process="3")
        expect(page.get_by_text("after", exact=True)).to_be_visible()
        expect(page.get_by_text("before")).to_be_visible()


def test_the_lines_of_a_node_that_joins(browser: Browser, tmp_path: Path, page: Page) -> None:
    """Real processes: what `shoal join` writes to its own terminal is seen here."""
    with staged(tmp_path, 1) as stage:
        page.goto(f"{stage.address}/logs?node=node-0")
        expect(page.locator(".log-line").filter(has_text="joined")).to_be_visible()


@each_screen
def test_everybody_can_read_it(running: Inside, browser: Browser, scheme: str, width: int) -> None:
    for level in (10, 20, 30, 40, 50):
        write(running, [HOSTILE, "loss is 5"], level=level, process=str(level))
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page.set_default_timeout(PATIENCE_MS)
    opened(page, running, "&level=debug&q=loss")
    expect(page.get_by_test_id("log-count")).to_have_text("5")
    page.get_by_label("Next match").click()
    expect(page.get_by_test_id("log-detail")).to_be_visible()
    assert axe.violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


@pytest.mark.parametrize("width", [320, 390])
def test_count_and_arrows_of_the_search_fit_on_a_narrow_screen(running: Inside, browser: Browser, width: int) -> None:
    write(running, ["loss is 5"] * 10_000)
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.set_default_timeout(PATIENCE_MS)
    opened(page, running, "&q=loss")
    page.get_by_label("Previous match").click()
    count = page.get_by_test_id("log-count")
    expect(count).to_have_text("10000/10000")
    assert count.evaluate("it => it.scrollWidth <= it.clientWidth"), "the arrows cover the count"
    for name in ("Previous match", "Next match"):
        expect(page.get_by_label(name)).to_be_in_viewport(ratio=1)
    page.close()
