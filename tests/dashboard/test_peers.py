"""A job's nodes as each other's peers, on its page: what they tell the coordinator arrives without a reload."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.dashboard.scenario import PATIENCE_MS
from tests.dashboard.screens import each_screen
from tests.dashboard.simulated_nodes import BYTES, SimulatedNodes
from tests.support.coordinator import Inside, inside
from tests.support.scenario import SIZE, by_hand

pytestmark = [pytest.mark.timeout(300)]

NODES = 7
LATE_MS = 15_000


@pytest.fixture(scope="module")
def running(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """A coordinator that loses no node. (The browser is there first: without one there is nothing to do.)"""
    with inside(tmp_path_factory.mktemp("peers") / "data", lease_s=86_400.0) as made:
        yield made


@pytest.fixture(scope="module")
def simulated_nodes(running: Inside) -> Iterator[SimulatedNodes]:
    """A job whose nodes know each other."""
    made = SimulatedNodes(running, NODES)
    yield made
    made.close()


@pytest.fixture
def fresh(browser: Browser, tmp_path: Path) -> Iterator[SimulatedNodes]:
    """The same, at the server: no status has been reported yet."""
    with inside(tmp_path / "data", lease_s=86_400.0) as made:
        simulated_nodes = SimulatedNodes(made, NODES)
        yield simulated_nodes
        simulated_nodes.close()


@pytest.fixture
def away(simulated_nodes: SimulatedNodes) -> SimulatedNodes:
    """The same, carried on by its nodes, who have learned, mixed and told."""
    simulated_nodes.running.post(f"/jobs/{simulated_nodes.job}/switch", {"to": "gossip"})
    simulated_nodes.go("gossip")
    simulated_nodes.learn()
    simulated_nodes.mix(5)
    simulated_nodes.tell()
    return simulated_nodes


@pytest.fixture
def shown(away: SimulatedNodes, page: Page, errors: list[str]) -> Iterator[Page]:
    """That job's page, live, which may not complain."""
    visit(away, page)
    yield page
    assert not errors


def visit(simulated_nodes: SimulatedNodes, page: Page) -> None:
    page.goto(f"{simulated_nodes.running.url}/jobs/{simulated_nodes.job}", timeout=PATIENCE_MS)
    expect(page.get_by_test_id("connection-banner")).to_have_attribute("data-state", "live")
    expect(page.get_by_test_id("topology")).to_be_visible()


def view(simulated_nodes: SimulatedNodes) -> dict[str, Any]:
    found: dict[str, Any] = simulated_nodes.running.get(f"/jobs/{simulated_nodes.job}/peers")
    return found


def node(page: Page, name: str) -> Locator:
    """A node in the drawing."""
    return page.get_by_test_id(f"topology-{name}")


def lines(page: Page, to: str) -> Locator:
    return page.get_by_test_id("topology").locator(f'.topology-lines path[data-to="{to}"]')


def pairs(simulated_nodes: SimulatedNodes) -> int:
    """How many pairs of nodes have exchanged something."""
    return sum(int(edge["exchanges"] > 0) for one in simulated_nodes.members for edge in one.edges.values()) // 2


def test_the_star_of_the_server_becomes_the_peers_graph_without_a_reload(
    fresh: SimulatedNodes, page: Page, errors: list[str]
) -> None:
    visit(fresh, page)
    expect(page.get_by_test_id("topology")).to_contain_text(f"{NODES} nodes in server mode")
    expect(lines(page, "server")).to_have_count(NODES)
    expect(lines(page, "peer")).to_have_count(0)
    served = re.compile(r"^n0: server mode, \w+ · [1-9][\d.]* kB to and from the coordinator$")
    expect(page.get_by_role("option", name=served)).to_have_count(1)
    expect(page.get_by_test_id("peers-gossiping")).to_have_count(0)  # no status has been reported yet
    page.evaluate("window.unchanged = true")
    fresh.running.post(f"/jobs/{fresh.job}/switch", {"to": "gossip"})
    fresh.go("gossip")
    fresh.members[0].state = "coordinated"
    fresh.learn()
    fresh.members[1].meet(fresh.members[2])
    fresh.members[1].refused = {"trust.signature": 3, "trust.replayed": 1}
    fresh.tell()
    expect(node(page, "n0")).to_have_attribute("data-status", re.compile("training|idle"))
    for name in ("n1", "n2", "n6"):
        expect(node(page, name)).to_have_attribute("data-status", "gossip")
    expect(lines(page, "server")).to_have_count(1)
    expect(lines(page, "peer")).to_have_count(1)
    expect(page.get_by_test_id("peers-gossiping")).to_have_text(str(NODES - 1))
    refused = page.get_by_test_id("refusals").locator("li")
    expect(refused).to_have_count(2)
    expect(refused.first).to_contain_text(re.compile(r"trust\.signature\s*3\s*by n1 \(3\)"))
    row = page.get_by_test_id("peer-row-n1").locator("td")
    mode, rounds, _, _, _, sees, *sums, _ = [cell.split("\n")[0].strip() for cell in row.all_inner_texts()]
    assert (mode, rounds, sees) == ("Gossip", "1", f"{NODES - 1} of {NODES - 1}")
    assert sums == ["1", f"{BYTES / 1000:.1f} kB", f"{BYTES / 1000:.1f} kB", "4"]  # exchanges, sent, received, refused
    assert page.evaluate("window.unchanged") is True
    assert not errors


def test_how_near_models_are_is_what_the_coordinator_says(away: SimulatedNodes, shown: Page) -> None:
    before = view(away)["now"]
    for _ in range(60):  # a point of the history is taken every 5 s; words that are told meanwhile keep it fresh
        away.tell()
        now = view(away)["now"]
        if now is not None and now != before and now["peers"] == NODES:
            break
        shown.wait_for_timeout(500)
    else:
        raise AssertionError("the coordinator never measured all peers")
    away.tell()
    expect(shown.get_by_test_id("peers-consensus")).to_have_text(f"{100 * now['consensus']:.2f}%")
    expect(shown.get_by_test_id("peers-coverage")).to_have_text(f"{100 * now['coverage']:.1f}%")
    assert now["residual"] < 1e-12, "exchanges conserve the sum, and everybody has told"
    for measure in ("consensus", "residual", "coverage"):
        chart = shown.get_by_test_id(f"chart-{measure}")
        expect(chart.locator("canvas")).to_be_visible()
        chart.get_by_role("button", name="as table").click()
        expect(chart.locator("tbody tr")).not_to_have_count(0)


def test_a_table_says_what_the_drawing_shows(away: SimulatedNodes, shown: Page) -> None:
    for _ in range(20):
        away.members[5].meet(away.members[6])
    away.tell()
    expect(lines(shown, "peer")).to_have_count(pairs(away))
    shown.get_by_role("button", name="Communication graph (bytes): show as table").click()
    rows = shown.get_by_test_id("topology").locator("tbody tr")
    expect(rows).to_have_count(pairs(away))
    met = away.members[5].edges["n6"]
    sums = [f"{(met['sent'] + met['received']) / 1e6:.2f} MB", str(met["exchanges"]), "3.5 ms", "alive"]
    expect(rows.first.locator("th, td")).to_have_text(["n5", "n6", *sums])  # the most bytes come first
    shown.get_by_role("button", name="Update coverage by model and node (share of rounds): show as table").click()
    cells = shown.get_by_test_id("coverage").locator("tbody tr")
    expect(cells).to_have_count(NODES)
    assert cells.first.locator("td").first.inner_text() == "100%", "a model holds all rounds of its own node"


def test_the_drawing_is_walked_with_the_keyboard(away: SimulatedNodes, shown: Page) -> None:
    nodes = shown.get_by_test_id("topology").get_by_role("option")
    expect(nodes).to_have_count(NODES)
    expect(shown.get_by_test_id("topology").locator('[role=option][tabindex="0"]')).to_have_count(1)
    nodes.first.focus()
    readout = shown.get_by_test_id("topology").locator(".readout")
    expect(readout).to_contain_text("n0: gossip mode")
    shown.keyboard.press("ArrowRight")
    expect(nodes.nth(1)).to_be_focused()
    expect(readout).to_contain_text("n1: gossip mode")
    shown.keyboard.press("End")
    expect(nodes.nth(NODES - 1)).to_be_focused()
    shown.keyboard.press("ArrowDown")
    expect(nodes.first).to_be_focused()
    own = sum(edge["exchanges"] > 0 for edge in away.members[0].edges.values())
    expect(shown.get_by_test_id("topology").locator("path[data-chosen]")).to_have_count(own)


def test_a_silent_node_stays_as_a_ghost(away: SimulatedNodes, shown: Page) -> None:
    """Unless another says that it lives: then it is only the coordinator that does not hear it."""
    for one in away.members[1:]:
        one.edges["n0"]["state"] = "dead"
    found, waited = None, 0
    while found != "lost" and waited < PATIENCE_MS:
        away.tell("n0")
        shown.wait_for_timeout(1000)
        waited += 1000
        found = node(shown, "n0").get_attribute("data-status")
        assert found in ("gossip", "lost")
    assert waited > LATE_MS / 2, "nobody is lost in a moment"
    expect(node(shown, "n0")).to_have_attribute("data-unreachable", "true")
    expect(shown.get_by_test_id("topology").locator("path[data-unreachable]")).not_to_have_count(0)
    expect(shown.get_by_test_id("peer-row-n0")).to_contain_text("Unreachable")
    away.members[1].edges["n0"]["state"] = "alive"
    away.tell("n0")
    expect(node(shown, "n0")).to_have_attribute("data-status", "apart")


@each_screen
def test_nothing_sticks_out(away: SimulatedNodes, browser: Browser, scheme: Any, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(f"{away.running.url}/jobs/{away.job}")
    expect(node(page, "n6")).to_be_visible(timeout=PATIENCE_MS)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    inside_of = page.get_by_test_id("topology").bounding_box()
    for index in range(NODES):
        box = node(page, f"n{index}").bounding_box()
        assert box is not None
        assert inside_of is not None
        assert inside_of["x"] <= box["x"] <= box["x"] + box["width"] <= inside_of["x"] + inside_of["width"]
    page.close()


def test_the_list_of_jobs_says_who_leads(away: SimulatedNodes, page: Page, errors: list[str]) -> None:
    page.goto(away.running.url, timeout=PATIENCE_MS)
    expect(page.get_by_test_id(f"job-row-{away.job}")).to_contain_text("Gossip")
    assert not errors


def test_a_job_that_must_stay_has_its_servers_star_and_no_peers(running: Inside, page: Page, errors: list[str]) -> None:
    running.begin("stays", nodes=2)
    node = by_hand(running, "s0", {"stays": SIZE})
    page.goto(f"{running.url}/jobs/stays", timeout=PATIENCE_MS)
    expect(page.get_by_test_id("version-count")).to_be_visible(timeout=PATIENCE_MS)
    expect(page.get_by_test_id("topology")).to_contain_text("1 node")
    expect(page.get_by_test_id("peers")).to_have_count(0)
    node.client.close()
    assert not errors
