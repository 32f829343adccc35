"""The page that lets a node in: a token, the lines to copy, and the node when it comes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.axe import violations
from tests.dashboard.screens import each_screen
from tests.dashboard.sign_in import sign_in
from tests.support.coordinator import Inside, inside
from tests.support.node import History, Node

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def running(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """A coordinator. (The browser is there first.)"""
    folder: Path = tmp_path_factory.mktemp("join") / "data"
    with inside(folder, lease_s=86_400.0) as made:
        yield made


def come(running: Inside, name: str, token: str) -> None:
    """A node that uses the token, as `shoal join` does."""
    node = Node(lambda: running.url, name, token, {}, History())
    node.enter()
    node.client.close()


def test_a_node_appears_when_it_connects(running: Inside, page: Page, errors: list[str]) -> None:
    come(running, "old", running.token())
    page.goto(f"{running.url}/nodes")
    sign_in(page)
    page.get_by_test_id("join").click()
    page.get_by_label("Name").fill("clinic-a")
    page.get_by_label("Learner").fill("my data.py:learner")
    page.reload()  # both are in the address
    expect(page.get_by_label("Name")).to_have_value("clinic-a")
    expect(page.get_by_label("Learner")).to_have_value("my data.py:learner")
    page.get_by_test_id("create-token").click()
    line = page.get_by_test_id("pip-commands").inner_text().splitlines()[1]
    found = re.fullmatch(
        rf"shoal join {running.url} --token (\S+) --learner 'my data.py:learner' --name clinic-a", line
    )
    assert found is not None, line
    expect(page.get_by_test_id("docker-commands")).to_contain_text(found[1])
    expect(page.get_by_test_id("script-lines")).to_contain_text(f'token="{found[1]}", name="clinic-a") as node:')
    expect(page.get_by_test_id("new-nodes")).to_contain_text("Waiting for the node")
    come(running, "clinic-a", found[1])
    expect(page.get_by_test_id("new-nodes")).to_contain_text("clinic-a has joined.")
    expect(page.get_by_test_id("new-nodes")).not_to_contain_text("old")
    page.get_by_test_id("new-nodes").get_by_role("link", name="clinic-a").click()
    expect(page.get_by_role("heading", name="clinic-a")).to_be_visible()
    assert not errors


def test_what_is_no_name_makes_no_token(running: Inside, page: Page) -> None:
    page.goto(f"{running.url}/join?name=Clinic%20A")
    sign_in(page)
    expect(page.get_by_test_id("create-token")).to_be_disabled()
    expect(page.get_by_text("Use lower-case letters")).to_be_visible()


def test_a_token_can_be_revoked_where_it_was_made(running: Inside, page: Page, errors: list[str]) -> None:
    page.goto(f"{running.url}/join")
    sign_in(page)
    page.get_by_test_id("create-token").click()
    text = page.get_by_test_id("pip-commands").inner_text()
    token = text[text.index("sht_") :].split()[0]
    row = page.get_by_test_id("tokens").get_by_role("row").filter(has_text=token[:12])
    expect(row).to_contain_text("1 of 1")
    row.get_by_role("button", name=f"Revoke {token[:12]}").click()
    expect(row).to_have_count(0)
    wanted = {"token": token, "name": "late"}
    assert running.request("POST", "/api/v1/enrol", json=wanted).json()["code"] == "token.invalid"
    assert not errors


@each_screen
def test_everybody_can_read_it(running: Inside, browser: Browser, scheme: Any, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(f"{running.url}/join")
    sign_in(page)
    page.get_by_test_id("create-token").click()
    expect(page.get_by_test_id("docker-commands")).to_be_visible()
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
