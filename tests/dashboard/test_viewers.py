"""Viewers see, operators act: the pages of a viewer, and what becomes of one who tries all the same."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.coordinator.test_authorization import JSON, OPERATE
from tests.dashboard.scenario import PATIENCE_MS
from tests.dashboard.sign_in import sign_in
from tests.support.coordinator import inside
from tests.support.scenario import Stage, set_up
from tests.support.waiting import until

pytestmark = [pytest.mark.timeout(300)]

ACTS = (
    "pause",
    "resume",
    "stop",
    "switch-gossip",
    "switch-server",
    "clone",
    "edit-tags",
    "new-job",
    "acknowledge",
    "start-job",
    "create-paused",
    "create-token",
    "join",
    "promote",
)
PAGES = (
    "",
    "jobs/main",
    "jobs/main?view=models",
    "nodes",
    "nodes/n0",
    "alerts",
    "new",
    "join",
)
TELLS = {"alerts": "alerts", "jobs/main?view=models": "model-0", "nodes": "fleet-table"}
"""Elements that must be there before the test checks that no controls are."""
SAID = {"new": "Only operators can create jobs.", "join": "Only operators can add nodes."}
PARTS = {"job": "main", "node": "n0", "alert": "1", "digest": "0" * 64}
SEND = """async ([operation, body]) => {
    const [method, path] = operation.split(" ");
    const headers = body === null ? {} : { "content-type": "application/json" };
    const answer = await fetch(path, { method, headers, body: body === null ? undefined : JSON.stringify(body) });
    const problem = method === "HEAD" ? null : await answer.json();
    return { status: answer.status, type: answer.headers.get("content-type"), problem };
}"""


@pytest.fixture(scope="module")
def stage(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A job that may go to its nodes, and an alert. (The browser is first: without one there is nothing to do.)"""
    folder = tmp_path_factory.mktemp("viewers") / "data"
    with inside(folder, lease_s=86_400.0, alert_disk_bytes=2**62) as running:
        made = set_up(running, gossip={"allowed": True})
        until("an alert on the disk", lambda: running.get("/alerts")["alerts"])
        yield made
        made.close()


@pytest.fixture
def viewer(stage: Stage, page: Page) -> Page:
    """A page that a viewer has signed in on."""
    page.goto(stage.running.url, timeout=PATIENCE_MS)
    sign_in(page, stage.running.post("/tokens", {"role": "viewer"})["token"])
    expect(page.get_by_test_id("role")).to_contain_text("change nothing")
    return page


def test_a_viewers_pages_have_nothing_to_act_with(stage: Stage, viewer: Page) -> None:
    for place in PAGES:
        viewer.goto(f"{stage.running.url}/{place}")
        expect(viewer.get_by_test_id("role")).to_be_visible()
        expect(viewer.get_by_role("heading", level=1)).to_be_visible()
        if place in TELLS:
            expect(viewer.get_by_test_id(TELLS[place])).to_be_visible()
        for act in ACTS:
            expect(viewer.get_by_test_id(act)).to_have_count(0)
        if place in SAID:
            expect(viewer.get_by_text(SAID[place])).to_be_visible()


def test_a_viewer_who_acts_all_the_same_is_refused(stage: Stage, viewer: Page) -> None:
    """With every route that changes something, from the page itself, with the session's cookie."""
    before = stage.picture()
    for operation in sorted(OPERATE):
        path = re.sub(r"\{(\w+)\}", lambda part: PARTS.get(part[1], "x"), operation)
        body = None if operation.startswith(("GET ", "HEAD ")) else JSON.get(operation, {})
        found = viewer.evaluate(SEND, [path, body])
        assert (found["status"], found["type"]) == (403, "application/problem+json"), operation
        assert stage.picture() == before, operation
        if found["problem"] is None:
            continue
        assert found["problem"]["code"] == "auth.forbidden", operation
        assert "operator" in found["problem"]["detail"], operation


def test_an_operator_has_the_buttons(stage: Stage, page: Page) -> None:
    """Else the tests above would pass on pages without controls for any user."""
    page.goto(stage.running.url, timeout=PATIENCE_MS)
    sign_in(page)
    expect(page.get_by_test_id("sign-out")).to_be_visible()
    found = set()
    telling = {"": "new-job", "jobs/main": "stop", "alerts": "acknowledge", "new": "start-job", "join": "create-token"}
    telling |= {"jobs/main?view=models": "promote", "nodes": "join"}
    for place, act in telling.items():
        page.goto(f"{stage.running.url}/{place}")
        expect(page.get_by_test_id(act).first).to_be_visible()
        found |= {act for act in ACTS if page.get_by_test_id(act).count()}
    assert found == set(ACTS) - {"resume", "switch-server"}
