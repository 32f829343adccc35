"""A coordinator that is killed, as by a power cut, and starts again under open pages: they go on without a reload."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.scenario import PATIENCE_MS
from tests.support.coordinator import Server
from tests.support.node import Node
from tests.support.ports import free_port

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture
def server(browser: Browser, tmp_path: Path) -> Iterator[Server]:
    """In a process of its own, always at one port. (The browser is first: without one there is nothing to do.)"""
    made = Server(tmp_path / "data", port=free_port()).start()
    yield made
    made.kill()
    made.close()


@pytest.fixture
def nodes(server: Server) -> Iterator[list[Node]]:
    """Two that take part for as long as the test lasts, whatever happens to the coordinator."""
    server.begin("main", nodes=2, rounds=100_000)
    made = [Node(lambda: server.url, f"n{i}", server.token(), {"main": 10}) for i in range(2)]
    for node in made:
        node.start()
    yield made
    for node in made:
        node.quit.set()
    for node in made:
        node.join(PATIENCE_MS / 1000)


def shown(page: Page, test_id: str) -> int:
    """The number that an element begins with."""
    found = re.search(r"\d[\d,]*", page.get_by_test_id(test_id).inner_text())
    return int(found[0].replace(",", "")) if found else -1


def passes(page: Page, test_id: str, number: int) -> None:
    """Wait until a greater one stands there. (The page's policy forbids to wait with a script in it.)"""
    for _ in range(PATIENCE_MS // 100):
        if shown(page, test_id) > number:
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"{test_id} never passed {number}")


def test_pages_go_on_when_the_coordinator_was_killed(
    server: Server, nodes: list[Node], browser: Browser, page: Page
) -> None:
    other = browser.new_page()
    for one, path in ((page, "/jobs/main"), (other, "/")):
        one.set_default_timeout(PATIENCE_MS)
        one.goto(server.url + path)
        one.evaluate("window.unchanged = true")
        expect(one.get_by_test_id("connection-banner")).to_have_attribute("data-state", "live")
    passes(page, "version-count", 2)
    expect(other.get_by_test_id("fleet-health")).to_be_visible()  # a page that knows nothing has nothing to go on with
    for _ in range(2):
        server.kill()
        expect(page.get_by_test_id("connection-banner")).not_to_have_attribute("data-state", "live")
        expect(other.get_by_test_id("fleet-health")).to_have_attribute("data-state", "unknown")
        before = shown(page, "version-count")
        assert before >= 2, "what was known stays to be seen"
        server.start()
        passes(page, "version-count", before)
        passes(other, "job-row-main", before)
        for one in (page, other):
            expect(one.get_by_test_id("connection-banner")).to_have_attribute("data-state", "live")
            assert one.evaluate("window.unchanged") is True
    assert shown(page, "version-count") <= server.job("main")["version"]
    other.close()
