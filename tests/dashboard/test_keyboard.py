"""The dashboard by keyboard alone: no test here touches the mouse."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.dashboard import axe
from tests.dashboard.scenario import PATIENCE_MS
from tests.support.coordinator import OPERATOR, inside
from tests.support.scenario import Stage, set_up

pytestmark = [pytest.mark.timeout(300)]

STEPS_MAX = 60


@pytest.fixture(scope="module")
def stage(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Two jobs and three nodes. (The browser is there first: without one there is nothing to do.)"""
    with inside(tmp_path_factory.mktemp("keyboard") / "data", lease_s=86_400.0) as running:
        made = set_up(running)
        running.begin("other", nodes=1, title="Another one")
        yield made
        made.close()


@pytest.fixture(autouse=True)
def quiet(errors: list[str]) -> Iterator[None]:
    yield
    assert not errors


@pytest.fixture
def jobs(stage: Stage, page: Page) -> Page:
    """The list of jobs."""
    page.goto(stage.running.url, timeout=PATIENCE_MS)
    expect(page.get_by_test_id("job-row-main")).to_be_visible()
    return page


def tab_to(page: Page, wanted: Locator) -> None:
    """Press Tab until the element has the focus; fail if it never does."""
    expect(wanted).to_be_visible()
    for _ in range(STEPS_MAX):
        if wanted.evaluate("it => it === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError("the Tab key does not lead there")


def test_a_walk_from_the_door_to_a_paused_job(stage: Stage, jobs: Page) -> None:
    page, keys = jobs, jobs.keyboard
    keys.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    tab_to(page, page.get_by_test_id("sign-in"))
    keys.press("Enter")
    expect(page.get_by_label("Token")).to_be_focused()
    keys.type(OPERATOR)
    keys.press("Enter")
    expect(page.get_by_test_id("sign-out")).to_be_visible()
    tab_to(page, page.get_by_role("link", name="main", exact=True))
    keys.press("Enter")
    expect(page).to_have_url(f"{stage.running.url}/jobs/main")
    tab_to(page, page.get_by_test_id("axis-bytes").locator("..").locator("input:checked"))
    keys.press("ArrowRight")
    expect(page).to_have_url(f"{stage.running.url}/jobs/main?x=clock")
    tab_to(page, page.get_by_test_id("pause"))
    keys.press("Enter")
    expect(page.get_by_label("Reason")).to_be_visible()
    tab_to(page, page.get_by_label("Reason"))
    keys.type("lunch")
    keys.press("Enter")
    expect(page.get_by_test_id("job-state")).to_have_attribute("data-state", "paused")
    assert stage.running.job("main")["state_why"] == "lunch"
    tab_to(page, page.get_by_test_id("resume"))
    keys.press("Enter")
    keys.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_test_id("resume")).to_be_focused()
    stage.running.post("/jobs/main/resume")


def test_keys_lead_from_page_to_page(stage: Stage, jobs: Page) -> None:
    page, keys = jobs, jobs.keyboard
    for key, path in (("n", "/nodes"), ("l", "/logs"), ("a", "/alerts"), ("c", "/compare"), ("j", "/")):
        keys.press("g")
        keys.press(key)
        expect(page).to_have_url(f"{stage.running.url}{path}")
    keys.press("/")
    expect(page.get_by_label("Search jobs")).to_be_focused()
    keys.type("g/?j")  # in a field it is only text
    expect(page).to_have_url(f"{stage.running.url}/?q=g%2F%3Fj")


def test_the_palette_leads_to_jobs_nodes_and_themes(stage: Stage, jobs: Page) -> None:
    page, keys = jobs, jobs.keyboard
    keys.press("Control+k")
    expect(page.get_by_test_id("palette")).to_be_focused()
    keys.type("another")
    expect(page.get_by_role("dialog").get_by_role("option")).to_have_text(["other · Another one job"])
    keys.press("Enter")
    expect(page).to_have_url(f"{stage.running.url}/jobs/other")
    expect(page.get_by_role("dialog")).to_have_count(0)
    keys.press("Control+k")
    keys.type("node n")
    expect(page.get_by_role("dialog").get_by_role("option")).to_contain_text(["n0", "n1", "n2"])
    keys.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    keys.press("Control+k")
    keys.type("n2")
    keys.press("Enter")
    expect(page).to_have_url(f"{stage.running.url}/nodes/n2")
    keys.press("Control+k")
    keys.type("dark")
    keys.press("Enter")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    keys.press("Control+k")
    keys.type("nothing at all")
    expect(page.get_by_text("No results")).to_be_visible()


def test_the_keys_are_told(jobs: Page) -> None:
    page, keys = jobs, jobs.keyboard
    keys.press("?")
    expect(page.get_by_test_id("keys")).to_contain_text("Search on this page")
    keys.press("g")
    keys.press("n")
    expect(page.get_by_test_id("keys")).to_be_visible()  # a dialog keeps its keys
    keys.press("Escape")
    expect(page.get_by_test_id("keys")).to_have_count(0)


def test_keys_alone_are_switched_off_and_stay_so(jobs: Page) -> None:
    """WCAG 2.1.4: users of speech input would press them by accident. Ctrl K leads back."""
    page, keys = jobs, jobs.keyboard
    keys.press("?")
    tab_to(page, page.get_by_test_id("single-keys"))
    keys.press("Space")
    keys.press("Escape")
    page.reload()
    expect(page.get_by_test_id("job-row-main")).to_be_visible()
    address = page.url
    for key in ("?", "/", "g", "n"):
        keys.press(key)
    keys.press("Control+k")
    expect(page.get_by_role("dialog")).to_have_count(1)
    expect(page.get_by_test_id("keys")).to_have_count(0)
    assert page.url == address
    keys.type("shortcuts")
    keys.press("Enter")
    expect(page.get_by_test_id("single-keys")).not_to_be_checked()
    page.get_by_test_id("single-keys").check()
    keys.press("Escape")
    keys.press("g")
    keys.press("n")
    expect(page.get_by_role("heading", name="Nodes")).to_be_visible()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_everybody_can_read_them(stage: Stage, browser: Browser, scheme: str, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(stage.running.url, timeout=PATIENCE_MS)
    expect(page.get_by_test_id("job-row-main")).to_be_visible()
    page.keyboard.press("Control+k")
    expect(page.get_by_test_id("palette")).to_be_focused()
    page.keyboard.type("n")
    expect(page.get_by_test_id("palette")).to_have_value("n")
    expect(page.get_by_role("option").first).to_be_visible()
    assert axe.violations(page) == []
    page.keyboard.press("Escape")  # a search field would only be emptied
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("?")
    expect(page.get_by_test_id("keys")).to_be_visible()
    assert axe.violations(page) == []
    page.close()
