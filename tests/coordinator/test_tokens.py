"""Tokens: what each is for, which there are, and how they end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import client
from tests.support.coordinator import OPERATOR, Inside, inside
from tests.support.node import History, Node
from tests.support.scenario import by_hand, problem


def sign_in(running: Inside, token: str) -> str:
    """A browser's cookie."""
    with client(base_url=running.url) as browser:
        assert browser.post("/api/v1/session", json={"token": token}).status_code == 204
        return browser.cookies["shoal_session"]


def reads(running: Inside, **headers: str) -> bool:
    with client(base_url=running.url, headers=headers) as asking:
        return asking.get("/api/v1/jobs").status_code == 200


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with inside(tmp_path_factory.mktemp("tokens") / "data", anonymous_read=False) as made:
        yield made


def test_a_token_in_the_wrong_place_is_called_by_its_kind(closed: Inside) -> None:
    """A token without a known prefix, chosen by the operators, is recognized; none is spent."""
    join = closed.token()
    viewer = closed.post("/tokens", {"role": "viewer"})["token"]
    told = problem(
        closed.request("GET", "/api/v1/jobs", headers={"Authorization": f"Bearer {join}"}), 401, "auth.refused"
    )
    assert "join token (sht_" in told["detail"]
    for token, kind in ((OPERATOR, "operator's token (sho_"), (viewer, "viewer's token (shv_")):
        told = problem(closed.request("POST", "/api/v1/enrol", json={"token": token, "name": "a"}), 401, "token.kind")
        assert kind in told["detail"]
        assert "token create" in told["hint"]
    told = problem(closed.request("POST", "/api/v1/session", json={"token": join}), 401, "auth.refused")
    assert "join token (sht_" in told["detail"]
    assert closed.request("POST", "/api/v1/enrol", json={"token": join, "name": "a"}).status_code == 201


def test_a_chosen_operators_token_enrols_nobody(tmp_path: Path) -> None:
    with inside(tmp_path / "data", operator_token="correct-horse") as running:
        wanted = {"token": "correct-horse", "name": "a"}
        problem(running.request("POST", "/api/v1/enrol", json=wanted), 401, "token.kind")


def test_tokens_are_listed_by_their_first_letters_alone(closed: Inside) -> None:
    fleet = closed.post("/tokens", {"uses": 5000, "ttl_s": 7200})
    closed.post("/tokens", {"name": "only-a"})
    assert fleet["loopback"] is True
    assert closed.request("POST", "/api/v1/enrol", json={"token": fleet["token"], "name": "b"}).status_code == 201
    text = closed.request("GET", "/api/v1/tokens").text
    newest, row = closed.get("/tokens")["tokens"][:2]
    assert fleet["token"] not in text
    assert (row["id"], row["uses"], row["uses_left"]) == (fleet["token"][:12], 5000, 4999) == (fleet["id"], 5000, 4999)
    assert newest["name"] == "only-a"


def test_a_revoked_token_is_good_for_nothing_and_its_sessions_end(closed: Inside) -> None:
    join, people = closed.post("/tokens", {"uses": 2}), closed.post("/tokens", {"role": "operator"})
    node = Node(lambda: closed.url, "stays", join["token"], {}, History())
    node.enter()
    cookies = [sign_in(closed, token) for token in (people["token"], OPERATOR)]
    assert next(one for one in closed.get("/tokens")["tokens"] if one["id"] == people["id"])["sessions"] == 1
    for made in (join, people):
        assert closed.request("DELETE", f"/api/v1/tokens/{made['id']}").status_code == 204
        problem(closed.request("DELETE", f"/api/v1/tokens/{made['id']}"), 404, "token.unknown")
    wanted = {"token": join["token"], "name": "late"}
    problem(closed.request("POST", "/api/v1/enrol", json=wanted), 401, "token.invalid")
    assert not reads(closed, Authorization=f"Bearer {people['token']}")
    assert [reads(closed, Cookie=f"shoal_session={cookie}") for cookie in cookies] == [False, True]
    assert node.client.post(f"{closed.url}/api/v1/hello", json={}).status_code == 200
    node.client.close()


def test_the_operators_own_token_is_not_revoked_but_changed(closed: Inside) -> None:
    found = problem(closed.request("DELETE", f"/api/v1/tokens/{OPERATOR[:12]}"), 409, "token.own")
    assert "operator.token" in found["hint"]


def test_another_operators_token_ends_the_old_one_and_its_sessions_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with inside(folder, anonymous_read=False) as running:
        viewer = running.post("/tokens", {"role": "viewer"})["token"]
        join = running.token()
        of_operator, of_viewer = sign_in(running, OPERATOR), sign_in(running, viewer)
        node = by_hand(running, "stays")
    credential = node.client.headers["Authorization"]
    node.client.close()
    with inside(folder, anonymous_read=False, operator_token="sho_another") as running:
        assert not reads(running, Authorization=f"Bearer {OPERATOR}")
        assert not reads(running, Cookie=f"shoal_session={of_operator}")
        assert reads(running, Authorization="Bearer sho_another")
        assert reads(running, Authorization=f"Bearer {viewer}")
        assert reads(running, Cookie=f"shoal_session={of_viewer}")
        with client(base_url=running.url) as asking:
            told = asking.post("/api/v1/hello", json={}, headers={"Authorization": credential})
            assert told.status_code == 200
            assert asking.post("/api/v1/enrol", json={"token": join, "name": "new"}).status_code == 201


def test_a_wrong_name_is_refused_in_words(closed: Inside) -> None:
    """People read no regular expressions."""
    found = problem(closed.request("POST", "/api/v1/tokens", json={"name": "Bad Name"}), 422, "request.invalid")
    assert found["detail"].startswith("body.name: must have 1 to 63 of a-z")
