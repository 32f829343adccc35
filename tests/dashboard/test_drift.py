"""The page of a job of dynamic averaging that really ran: what its panel says is what the API says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, Error, Page, Route, expect

from tests.dashboard.scenario import PATIENCE_MS, staged
from tests.dashboard.screens import each_screen
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.timeout(300)]

NODES, CHECKS = 3, 60
JOB = f"""
name = "stream"

[algorithm]
name = "dynamic"
steps = 5
local_steps = {5 * CHECKS}

[schedule]
name = "divergence"
delta = 0.5
balancing = "double"
in_step = true
min_nodes = {NODES}
"""

HELLO = 'event: hello\ndata: {"server_time": "2026-11-21T08:00:00.000Z", "version": "1", "started_at": "b"}\n\n'
"""A stream that tells nothing: what a page has fetched stays as it is."""

Find = Callable[[str], Any]
Numbers = dict[str, float]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a coordinator that has run the job."""
    place = tmp_path_factory.mktemp("drift")
    (place / "job.toml").write_text(JOB)
    with staged(place, NODES, "split=iid", "drift=permute@150") as stage:
        stage.asked("run", "job.toml")
        yield stage.address


@pytest.fixture
def find(address: str) -> Find:
    """Return the job by the API."""

    def ask(what: str = "") -> Any:
        with urlopen(f"{address}/api/v1/jobs/stream{what}", timeout=PATIENCE_S) as answer:
            return json.load(answer)

    return ask


@pytest.fixture
def shown(address: str, page: Page, errors: list[str]) -> Iterator[Page]:
    """The job's page, which may not complain."""
    page.goto(f"{address}/jobs/stream")
    expect(page.get_by_test_id("job-state")).to_have_attribute("data-state", "done", timeout=PATIENCE_MS)
    yield page
    assert not errors


def test_synchronizations_and_violations_are_counted(find: Find, shown: Page) -> None:
    versions = find("/versions?points=0")["versions"]
    last: Numbers = versions[-1]["numbers"]
    full, violations = int(last["total.full_syncs"]), int(last["total.violations"])
    partial = len(versions) - 1 - full
    assert min(full, partial, violations) > 0, "the job must have made both, or this test sees nothing"
    drift = shown.get_by_test_id("divergence")
    expect(drift).to_contain_text(f"{full} full, {partial} partial")
    expect(drift).to_contain_text(f"{violations} in total")
    expect(drift.get_by_test_id("divergence-threshold")).to_have_text("0.500")
    for chart in ("synchronizations", "violations"):
        expect(drift.get_by_test_id(f"chart-{chart}").locator("canvas")).to_be_visible()


def test_what_was_saved_is_computed_from_the_checks(find: Find, shown: Page) -> None:
    job, nodes = find(""), find("/nodes")["nodes"]
    assert [node["metrics"]["train/checks"] for node in nodes] == [CHECKS] * NODES
    spent, often = job["up_bytes"] + job["down_bytes"], NODES * CHECKS * 2 * job["model"]["bytes"]
    assert 0 < spent < often
    expect(shown.get_by_test_id("divergence-saved")).to_have_text(f"{100 * (1 - spent / often):.1f}%")


def test_each_node_has_its_gap_and_its_losses(find: Find, shown: Page) -> None:
    gaps = shown.get_by_test_id("reference-distances").locator("li")
    expect(gaps).to_have_count(NODES)
    for node in find("/nodes")["nodes"]:
        share = f"{100 * node['metrics']['train/divergence'] / 0.5:.0f}%"
        expect(gaps.filter(has_text=node["name"])).to_contain_text(share)
        assert node["losses"][-1] == node["metrics"]["train/loss"]
        assert 2 < len(node["losses"]) <= node["reports"]
        row = shown.get_by_test_id(f"node-row-{node['name']}")
        expect(row.locator("svg.spark")).to_be_visible()
        expect(row).not_to_contain_text("Set aside")


def test_nothing_speaks_of_rounds(shown: Page) -> None:
    expect(shown.get_by_test_id("axis-round")).to_have_text("Version")
    expect(shown.get_by_test_id("chart-bytes")).to_contain_text("Traffic per version (bytes up and down)")
    assert not re.search(r"\bround", shown.locator("main").inner_text(), re.IGNORECASE)
    expect(shown).to_have_title(re.compile(r"^100\.0% · .* · stream · shoal$"))


Change = Callable[[str, Callable[[Any], None]], None]


@pytest.fixture
def changed(page: Page) -> Iterator[Change]:
    """Lets the page see another answer than the coordinator's."""

    def install(path: str, change: Callable[[Any], None]) -> None:
        def answer(route: Route) -> None:
            with suppress(Error):  # the page that requested this answer may be gone
                response = route.fetch()
                body = response.json()
                change(body)
                route.fulfill(response=response, json=body)

        page.route(re.compile(path), answer)

    yield install
    page.unroute_all(behavior="ignoreErrors")  # else one that is under way fails in the next test


def test_a_divergence_and_a_waiting_node_are_named(
    address: str, page: Page, changed: Change, errors: list[str]
) -> None:
    """The detection of concept drift depends on this machine's speed, so the test makes the coordinator report one."""

    def drift(body: Any) -> None:
        body["versions"][-1]["numbers"] |= {"concept_drift.factor": 3.24, "concept_drift.since": 2}

    def rest(body: Any) -> None:
        body["nodes"][0]["resting"] = True

    page.route(re.compile(r"/api/v1/stream"), lambda route: route.fulfill(content_type="text/event-stream", body=HELLO))
    changed(r"/jobs/stream/versions\?", drift)
    changed(r"/jobs/stream/nodes$", rest)
    page.goto(f"{address}/jobs/stream")
    verdict = page.get_by_test_id("drift-status")
    expect(verdict).to_have_attribute("data-found", "true", timeout=PATIENCE_MS)
    expect(verdict).to_contain_text("since version 2 models diverge 3.2 times as fast")
    image = page.get_by_test_id("chart-violations").get_by_role("img")
    expect(image).to_have_attribute("aria-label", re.compile("concept drift detected at"))
    expect(page.get_by_text("Set aside")).to_have_count(1)
    expect(page.get_by_test_id("node-row-node-0")).to_contain_text("Set aside")
    assert not errors


def test_no_divergence_is_said_to_be_none(address: str, page: Page, changed: Change) -> None:
    def calm(body: Any) -> None:
        for version in body["versions"]:
            version["numbers"].pop("concept_drift.factor", None)

    changed(r"/jobs/stream/versions\?", calm)
    page.goto(f"{address}/jobs/stream")
    expect(page.get_by_test_id("drift-status")).to_have_attribute("data-found", "false", timeout=PATIENCE_MS)


@each_screen
def test_nothing_sticks_out(address: str, browser: Browser, scheme: Any, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(f"{address}/jobs/stream")
    expect(page.get_by_test_id("reference-distances")).to_be_visible(timeout=PATIENCE_MS)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
