"""Failures of nodes on the job's page: live, and with any text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from shoal.core.protocol.message import Phase, TaskFailed
from shoal.wire import codec
from tests.dashboard import axe
from tests.dashboard.scenario import PATIENCE_MS
from tests.dashboard.screens import each_screen
from tests.support.coordinator import inside
from tests.support.scenario import Stage, set_up, task_of

pytestmark = [pytest.mark.timeout(300)]

HOSTILE = "<img src=x onerror=\"document.title='hacked'\"> \u202egnp.exe " + "w" * 700
TRACEBACK = 'Traceback (most recent call last):\n  File "learner.py", line 3, in train\n    <script>alert(1)</script>'


def fail(stage: Stage, node: str, error: str, phase: Phase = "train", traceback: str = "") -> None:
    """The node gives the task up that stands for it."""
    place = next(one for one in stage.nodes if one.node == node)
    stage.tasks[node], _ = task_of(place, stage.job)
    said = TaskFailed(node, stage.tasks[node].id, error, phase, traceback)
    content = codec.encode(codec.Frame(stage.job, said))
    assert stage.send(node, "POST", f"/jobs/{stage.job}/failures", content=content).status_code == 200


@pytest.fixture
def stage(browser: Browser, tmp_path: Path) -> Iterator[Stage]:
    """A job two of whose nodes have tasks. (The browser is there first: without one there is nothing to do.)"""
    with inside(tmp_path / "data", lease_s=86_400.0) as running:
        made = set_up(running)
        yield made
        made.close()


def address(stage: Stage, more: str = "") -> str:
    return f"{stage.running.url}/jobs/main?view=failures{more}"


def test_a_failure_appears_as_it_happens_and_is_only_text(stage: Stage, page: Page, errors: list[str]) -> None:
    page.goto(address(stage))
    expect(page.get_by_text("No failures")).to_be_visible()
    expect(page.get_by_test_id("connection-banner")).to_have_attribute("data-state", "live")
    title = page.title()
    fail(stage, "n0", HOSTILE, traceback=TRACEBACK)
    row = page.locator(".failure")
    expect(row).to_have_count(1)
    for part in ("n0", "training", "<img src=x", "⟨202E⟩", "Replaced by other nodes", "1 of 2 lost"):
        expect(row).to_contain_text(part)
    assert page.locator(".failure img").count() == 0
    assert page.title() == title
    row.locator("summary").click()
    expect(row.locator("pre")).to_contain_text("<script>alert(1)</script>")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert not errors


def test_nodes_and_phases_are_chosen_in_the_address_and_by_keyboard(stage: Stage, page: Page) -> None:
    fail(stage, "n0", "no data", traceback=TRACEBACK)
    fail(stage, "n1", "disk full", phase="download")
    page.goto(address(stage, "&node=n1"))
    expect(page.locator(".failure")).to_have_count(1)
    expect(page.locator(".failure")).to_contain_text("disk full")
    page.get_by_label("Node").focus()
    page.keyboard.press("Home")  # all
    expect(page.locator(".failure")).to_have_count(2)
    assert "node=" not in page.url
    page.get_by_label("Phase").select_option("train")
    expect(page.locator(".failure")).to_contain_text("no data")
    assert "phase=train" in page.url
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".failure pre")).to_be_visible()


@each_screen
def test_everybody_can_read_them(stage: Stage, browser: Browser, scheme: str, width: int) -> None:
    fail(stage, "n0", HOSTILE, traceback=TRACEBACK)
    fail(stage, "n2", "disk full", phase="download")
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page.set_default_timeout(PATIENCE_MS)
    page.goto(address(stage))
    page.locator(".failure summary").click()
    assert axe.violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
