"""Controls of a job's page: clone, tag, and the preview of a switch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from shoal.trust.keys import SigningKey
from tests.dashboard.sign_in import sign_in
from tests.support.coordinator import Inside, inside
from tests.support.scenario import Stage, set_up

pytestmark = [pytest.mark.timeout(300)]

HOSTILE = "<img src=x onerror=alert(1)>\u202e"


@pytest.fixture
def running(browser: Browser, tmp_path: Path) -> Iterator[Inside]:
    """A coordinator. (The browser is there first: without one there is nothing to do.)"""
    with inside(tmp_path / "data", lease_s=86_400.0) as made:
        yield made


@pytest.fixture
def stage(running: Inside) -> Iterator[Stage]:
    """A job that may go to its nodes; n0 alone shows where others reach it."""
    made = set_up(running, gossip={"allowed": True})
    peer = {"public_key": SigningKey.make().public_key, "urls": ["http://10.0.0.7:9001"], "is_reachable": True}
    assert made.send("n0", "POST", "/hello", json={"peer": peer}).status_code == 200
    yield made
    made.close()


def test_a_switch_says_who_will_be_asked(stage: Stage, page: Page, errors: list[str]) -> None:
    page.goto(f"{stage.running.url}/jobs/main")
    sign_in(page)
    page.get_by_test_id("switch-gossip").click()
    preview = page.get_by_test_id("preview")
    expect(preview).to_contain_text("1 node carries the job on from version 0")
    expect(preview).to_contain_text("2 nodes cannot take part: no address")
    preview.locator("summary").nth(1).click()
    expect(preview).to_contain_text("n1, n2")
    assert stage.running.job("main")["mode"] == "server"
    assert not errors


def test_tags_are_given_shown_and_looked_for(stage: Stage, page: Page, errors: list[str]) -> None:
    running = stage.running
    running.begin("other", nodes=1)
    page.goto(f"{running.url}/jobs/main")
    sign_in(page)
    page.get_by_test_id("edit-tags").click()
    page.get_by_label("Tags (separated by commas").fill(f" baseline, {HOSTILE} ,baseline,")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("list", name="Tags").get_by_role("link")).to_have_text(
        ["<img src=x onerror=alert(1)>⟨202E⟩", "baseline"]
    )
    page.get_by_role("link", name="baseline").click()
    expect(page.get_by_test_id("job-row-main")).to_be_visible()
    expect(page.get_by_test_id("job-row-other")).to_have_count(0)
    page.get_by_test_id("clear-tag").click()
    expect(page.get_by_test_id("job-row-other")).to_be_visible()
    page.get_by_label("Search jobs").fill("oth")
    expect(page.get_by_test_id("job-row-main")).to_have_count(0)
    page.wait_for_url("**/?q=oth")
    page.reload()
    expect(page.get_by_test_id("job-row-other")).to_be_visible()
    expect(page.get_by_test_id("job-row-main")).to_have_count(0)
    assert not errors


def test_a_tag_that_is_refused_says_why(stage: Stage, page: Page) -> None:
    page.goto(f"{stage.running.url}/jobs/main")
    sign_in(page)
    page.get_by_test_id("edit-tags").click()
    page.get_by_label("Tags (separated by commas").fill("x" * 41)
    page.get_by_test_id("confirm").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("at most 40 characters")
    assert stage.running.job("main")["tags"] == []


def test_a_job_that_is_over_is_cloned_with_changes(stage: Stage, page: Page) -> None:
    stage.running.post("/jobs/main/stop", {})
    page.goto(f"{stage.running.url}/jobs/main")
    sign_in(page)
    expect(page.get_by_test_id("stop")).to_have_count(0)
    page.get_by_test_id("clone").click()
    expect(page.get_by_label("name required")).to_have_value("main-2")
    page.get_by_label("lr", exact=True).fill("0.25")
    page.get_by_test_id("start-job").click()
    expect(page.get_by_role("heading", name="main-2")).to_be_visible()
    assert stage.running.job("main-2")["spec"]["algorithm"]["lr"] == 0.25


def test_a_job_that_is_over_is_removed_once_that_is_confirmed(stage: Stage, page: Page, errors: list[str]) -> None:
    """Answers that are still being fetched when the removal is confirmed do not report the job as missing."""
    running, held = stage.running, list[Route]()

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/api/v1/jobs/doomed/traffic**", hold)
    running.begin("doomed", nodes=2, rounds=3)
    page.goto(f"{running.url}/jobs/doomed")
    sign_in(page)
    expect(page.get_by_test_id("stop")).to_be_visible()
    expect(page.get_by_test_id("remove")).to_have_count(0)
    running.post("/jobs/doomed/stop", {})
    page.get_by_test_id("remove").click()
    expect(page.get_by_role("dialog")).to_contain_text("permanently deletes")
    assert running.job("doomed")["state"] == "stopped"
    page.get_by_test_id("confirm").click()
    page.wait_for_timeout(500)
    assert held
    for route in held:
        route.continue_()
    expect(page.get_by_test_id("job-row-main")).to_be_visible()
    expect(page.get_by_test_id("job-row-doomed")).to_have_count(0)
    assert running.request("GET", "/api/v1/jobs/doomed").status_code == 404
    assert not errors


def test_a_job_is_created_and_started_later(stage: Stage, page: Page, errors: list[str]) -> None:
    page.goto(f"{stage.running.url}/new?from=main")
    sign_in(page)
    page.get_by_test_id("create-paused").click()
    expect(page.get_by_test_id("job-state")).to_contain_text("Paused")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("dialog")).to_contain_text("asked for an initial model")
    page.get_by_test_id("confirm").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_test_id("job-state")).not_to_contain_text("Paused")
    assert stage.running.job("main-2")["state"] == "waiting"
    assert not errors


def test_no_job_is_created_before_its_spec_was_checked(stage: Stage, page: Page, errors: list[str]) -> None:
    held: list[Route] = []
    page.goto(stage.running.url)
    sign_in(page)
    page.route("**/api/v1/jobs:validate", lambda route: held.append(route))  # noqa: PLW0108 -- it wants a function
    page.goto(f"{stage.running.url}/new?from=main")
    for button in ("create-paused", "start-job"):
        expect(page.get_by_test_id(button)).to_be_disabled()
    for route in held:
        route.continue_()
    page.unroute("**/api/v1/jobs:validate")
    for button in ("create-paused", "start-job"):
        expect(page.get_by_test_id(button)).to_be_enabled()
    assert not errors
