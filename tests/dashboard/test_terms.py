"""Explanations of the glossary's terms, by pointer and by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard import axe
from tests.dashboard.screens import each_screen
from tests.dashboard.sign_in import sign_in
from tests.support.coordinator import inside
from tests.support.scenario import Stage, set_up

pytestmark = [pytest.mark.timeout(300)]

VERSION = "A closed model of a job, numbered from 0."
REPORT = "A node's answer to a task."
TOPMOST = """tip => {
  const { left, top, width, height } = tip.getBoundingClientRect();
  return document.elementFromPoint(left + width / 2, top + height / 2) === tip;
}"""
"""True if nothing covers the middle of an explanation."""


@pytest.fixture(scope="module")
def stage(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with inside(tmp_path_factory.mktemp("terms") / "data", lease_s=86_400.0) as running:
        made = set_up(running)
        made.report(node="n0")
        yield made
        made.close()


@pytest.fixture
def job_page(stage: Stage, page: Page, errors: list[str]) -> Iterator[Page]:
    page.goto(f"{stage.running.url}/jobs/{stage.job}")
    expect(page.get_by_test_id("nodes-table")).to_be_visible()
    yield page
    assert not errors


def test_a_term_is_explained_while_it_is_pointed_at(job_page: Page) -> None:
    term = job_page.get_by_role("button", name="Version", exact=True)
    tip = job_page.get_by_role("tooltip")
    term.hover()
    expect(tip).to_have_text(VERSION)
    tip.hover()  # a long explanation can be read with a magnifier
    expect(tip).to_be_visible()
    job_page.get_by_role("heading", level=1).hover()
    expect(tip).to_have_count(0)


def test_a_term_is_explained_while_it_has_the_focus(job_page: Page) -> None:
    term = job_page.get_by_role("button", name="Version", exact=True)
    term.focus()
    expect(job_page.get_by_role("tooltip")).to_have_text(VERSION)
    expect(term).to_have_accessible_description(VERSION)
    term.press("Escape")
    expect(job_page.get_by_role("tooltip")).to_have_count(0)
    expect(term).to_be_focused()


def test_a_heading_that_sorts_is_explained_too(job_page: Page) -> None:
    heading = job_page.get_by_test_id("nodes-table").get_by_role("button", name="Reports")
    heading.focus()
    expect(job_page.get_by_role("tooltip")).to_have_text(REPORT)
    heading.press("Enter")
    expect(job_page).to_have_url(f"{job_page.url.partition('?')[0]}?sort=reports")


def test_a_term_in_a_dialog_is_explained_above_the_dialog(stage: Stage, page: Page, errors: list[str]) -> None:
    page.goto(f"{stage.running.url}/jobs/{stage.job}")
    sign_in(page)
    page.get_by_role("tab", name="Models").click()
    page.get_by_label("Promote version 0").click()
    dialog = page.get_by_role("dialog")
    term, tip = dialog.get_by_role("button", name="model version"), dialog.get_by_role("tooltip")
    term.hover()
    expect(tip).to_have_text(VERSION)
    assert tip.evaluate(TOPMOST), "the dialog hides it"
    dialog.get_by_role("heading").hover()
    expect(tip).to_have_count(0)
    term.focus()
    expect(tip).to_have_text(VERSION)
    assert tip.evaluate(TOPMOST), "the dialog hides it"
    expect(term).to_have_accessible_description(VERSION)
    term.press("Escape")
    expect(tip).to_have_count(0)
    expect(dialog).to_be_visible()
    term.press("Escape")
    expect(dialog).to_have_count(0)
    assert not errors


UNDERLINE = """button => {
  const light = css => {
    const [r, g, b] = css.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const { textDecorationStyle, textDecorationColor } = getComputedStyle(button);
  const paper = light(getComputedStyle(button.closest(".panel")).backgroundColor), line = light(textDecorationColor);
  return [textDecorationStyle, Math.max(line, paper) / Math.min(line, paper)];
}"""
"""The style of a term's underline, and its contrast to the panel."""


@each_screen
def test_the_underline_of_a_term_is_visible(stage: Stage, browser: Browser, scheme: Any, width: int) -> None:
    opened = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    opened.goto(f"{stage.running.url}/jobs/{stage.job}")
    expect(opened.get_by_test_id("nodes-table")).to_be_attached()
    terms = opened.locator(".panel .term").all()
    assert len(terms) >= 4
    for term in terms:
        style, contrast = term.evaluate(UNDERLINE)
        assert style == "dotted"
        assert contrast >= 3, term.inner_text()
    opened.close()


@each_screen
def test_an_explanation_is_whole(stage: Stage, browser: Browser, scheme: Any, width: int) -> None:
    """On a narrow screen the term stands next to the edge."""
    opened = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    opened.goto(f"{stage.running.url}/jobs/{stage.job}")
    opened.get_by_role("button", name="Traffic", exact=True).focus()
    expect(opened.get_by_role("tooltip")).to_be_in_viewport(ratio=1)
    box = opened.get_by_role("tooltip").bounding_box()
    assert box is not None
    assert box["width"] > 300, "it is squeezed against the edge"
    assert axe.violations(opened) == []
    opened.close()


@each_screen
def test_an_explanation_at_the_bottom_of_the_screen_is_whole(
    stage: Stage, browser: Browser, scheme: Any, width: int
) -> None:
    opened = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    opened.goto(f"{stage.running.url}/jobs/{stage.job}")
    term = opened.get_by_role("button", name="Traffic", exact=True)
    box = term.bounding_box()
    assert box is not None
    opened.set_viewport_size({"width": width, "height": int(box["y"] + box["height"]) + 8})
    term.focus()
    expect(opened.get_by_role("tooltip")).to_be_in_viewport(ratio=1)
    opened.close()
