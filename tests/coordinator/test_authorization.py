"""Authorization: every route of the API times every kind of caller. Requests that no list allows are denied."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from shoal.core.protocol.machine import HUB
from shoal_coordinator.api.app import create_app
from shoal_coordinator.api.openapi import document
from tests.support.clients import client
from tests.support.coordinator import FAST, OPERATOR, Inside, inside
from tests.support.node import body, displacement, initial
from tests.support.scenario import SIZE, Stage, by_hand, problem, set_up, task_of
from tests.support.waiting import PATIENCE_S, until

Roles = dict[str, dict[str, str]]

OPEN = {
    "GET /healthz",
    "GET /readyz",
    "GET /api/v1/version",
    "GET /api/v1/schemas/job.json",
    "POST /api/v1/enrol",
    "POST /api/v1/jobs/{job}/re-enrol",
    "GET /api/v1/session",
    "POST /api/v1/session",
    "DELETE /api/v1/session",
}
READ = {
    "GET /metrics",
    "GET /api/v1/jobs",
    "GET /api/v1/compare",
    "GET /api/v1/traffic",
    "GET /api/v1/jobs/{job}/versions",
    "GET /api/v1/jobs/{job}/events",
    "GET /api/v1/jobs/{job}/nodes",
    "GET /api/v1/jobs/{job}/peers",
    "GET /api/v1/jobs/{job}/traffic",
    "GET /api/v1/jobs/{job}/reports",
    "GET /api/v1/jobs/{job}/reports/heatmap",
    "GET /api/v1/jobs/{job}/influence",
    "GET /api/v1/jobs/{job}/fairness",
    "GET /api/v1/nodes/{node}/system-metrics",
    "GET /api/v1/jobs/{job}/reports/quantiles",
    "GET /api/v1/jobs/{job}/rounds/{number}",
    "GET /api/v1/jobs/{job}/nodes/{node}/reports/series",
    "GET /api/v1/nodes/{node}/reports",
    "GET /api/v1/jobs/{job}/switch",
    "GET /api/v1/jobs/{job}/export",
    "GET /api/v1/jobs/{job}/models",
    "GET /api/v1/jobs/{job}/models/{number}",
    "GET /api/v1/jobs/{job}/labels/{name}/model",
    "GET /api/v1/nodes",
    "GET /api/v1/nodes/{node}",
    "GET /api/v1/failures",
    "GET /api/v1/logs",
    "GET /api/v1/logs/matches",
    "GET /api/v1/alerts",
    "GET /api/v1/leader",
    "GET /api/v1/stream",
    "GET /api/v1/split",
}
NODE = {
    "POST /api/v1/hello",
    "GET /api/v1/work",
    "POST /api/v1/heartbeat",
    "POST /api/v1/leave",
    "POST /api/v1/logs",
    "POST /api/v1/system-metrics",
    "POST /api/v1/jobs/{job}/reports",
    "POST /api/v1/jobs/{job}/failures",
    "POST /api/v1/jobs/{job}/status",
    "POST /api/v1/jobs/{job}/ping",
    "POST /api/v1/jobs/{job}/join",
    "GET /api/v1/jobs/{job}/trust",
    "GET /api/v1/jobs/{job}/manifest",
    "POST /api/v1/jobs/{job}/peer-status",
    "POST /api/v1/jobs/{job}/relay",
    "PUT /api/v1/jobs/{job}/blobs/{digest}",
    "HEAD /api/v1/jobs/{job}/blobs/{digest}",
    "GET /api/v1/jobs/{job}/blobs/{digest}/presign",
    "POST /api/v1/jobs/{job}/blobs/{digest}/presign",
    "POST /api/v1/jobs/{job}/transfers",
    "POST /api/v1/split/{job}",
}
OPERATE = {
    "POST /api/v1/jobs",
    "POST /api/v1/jobs:validate",
    "POST /api/v1/jobs/{job}/pause",
    "POST /api/v1/jobs/{job}/resume",
    "POST /api/v1/jobs/{job}/stop",
    "POST /api/v1/jobs/{job}/switch",
    "PUT /api/v1/jobs/{job}/tags",
    "PUT /api/v1/jobs/{job}/labels/{name}",
    "DELETE /api/v1/jobs/{job}/labels/{name}",
    "DELETE /api/v1/jobs/{job}",
    "PATCH /api/v1/jobs/{job}",
    "DELETE /api/v1/nodes/{node}",
    "PUT /api/v1/nodes/{node}/availability",
    "POST /api/v1/tokens",
    "GET /api/v1/tokens",
    "DELETE /api/v1/tokens/{token}",
    "POST /api/v1/alerts/{alert}/acknowledge",
    "PUT /api/v1/blobs/{digest}",
    "PUT /api/v1/bases/{digest}",
    "HEAD /api/v1/bases/{digest}",
}
BODIES = "GET /api/v1/jobs/{job}/blobs/{digest}"
"""Readers get models; a node gets what its task names."""
JOBS = {"GET /api/v1/jobs/{job}", "GET /api/v1/split/{job}"}
"""Readers; and nodes, which must know what they take part in, and the algorithm that they have to run."""

JSON: dict[str, Any] = {
    "POST /api/v1/enrol": {"token": "sht_x", "name": "x"},
    "POST /api/v1/session": {"token": "sho_x"},
    "POST /api/v1/jobs": {"spec": {}},
    "POST /api/v1/jobs:validate": {"spec": {}},
    "POST /api/v1/tokens": {"role": "viewer"},
    "POST /api/v1/jobs/{job}/switch": {"to": "server"},
    "PATCH /api/v1/jobs/{job}": {"values": {"seed": 1}},
    "PUT /api/v1/jobs/{job}/tags": {"tags": ["a"]},
    "PUT /api/v1/nodes/{node}/availability": {"availability": "active"},
    "PUT /api/v1/jobs/{job}/labels/{name}": {"version": 0},
    "POST /api/v1/jobs/{job}/ping": {"term": 0},
    "POST /api/v1/heartbeat": {"job": "main", "task": "1.1", "progress": 0.5},
}
MAY: dict[str, set[str]] = {
    "nobody": OPEN,
    "a wrong token": OPEN - {"GET /api/v1/session"},
    "expired": OPEN - {"GET /api/v1/session"},
    "revoked": OPEN - {"GET /api/v1/session"},
    "node": OPEN | NODE | JOBS | {BODIES},
    "another node": OPEN | NODE | JOBS | {BODIES},  # of its own task, if it has one
    "viewer": OPEN | READ | JOBS | {BODIES},
    "operator": OPEN | READ | OPERATE | JOBS | {BODIES},
}
ALSO_WHERE_READING_IS_OPEN: dict[str, set[str]] = {
    "nobody": READ | JOBS | {BODIES},
    "node": READ,
    "another node": READ,
}


def operations(running: Inside) -> list[str]:
    paths = create_app(running.coordinator).openapi()["paths"]
    return sorted(f"{method.upper()} {path}" for path, methods in paths.items() for method in methods)


@pytest.fixture(scope="module", params=[True, False], ids=["reading open", "reading closed"])
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    settings = {"anonymous_read": request.param, "poll_s_max": 0.05, "lease_s": 3600}
    with inside(tmp_path_factory.mktemp("access") / "data", **settings) as running:
        made = set_up(running)
        yield made
        made.close()


@pytest.fixture(scope="module")
def roles(stage: Stage) -> Roles:
    """Headers of each kind of asker."""
    running = stage.running
    held = {node.node: {"Authorization": node.client.headers["Authorization"]} for node in stage.nodes}
    revoked = by_hand(running, "revoked")
    held["revoked"] = {"Authorization": revoked.client.headers["Authorization"]}
    revoked.client.close()
    assert running.request("DELETE", "/api/v1/nodes/revoked").status_code == 204

    def person(role: str, ttl_s: float) -> dict[str, str]:
        return {"Authorization": f"Bearer {running.post('/tokens', {'role': role, 'ttl_s': ttl_s})['token']}"}

    expired, viewer, operator = person("operator", 0.05), person("viewer", 900), person("operator", 900)
    until("a token to expire", lambda: running.request("GET", "/api/v1/tokens", headers=expired).status_code == 401)
    return {
        "nobody": {},
        "a wrong token": {"Authorization": "Bearer sho_wrong"},
        "expired": expired,
        "revoked": held["revoked"],
        "node": held["n0"],
        "another node": held["n2"],
        "viewer": viewer,
        "operator": operator,
    }


def ask(stage: Stage, operation: str, headers: dict[str, str]) -> httpx.Response:
    """The request of an operation, as far as it may go without changing much."""
    method, path = operation.split(" ")
    digest = hashlib.sha256(body(initial(SIZE))).hexdigest()
    path = path.format(
        job="main", digest=digest, number=0, node="nobody", alert=1, name="production", token="sht_none0000"
    )
    takes_bytes = any(word in path for word in ("blobs", "reports", "failures", "status"))
    content = {"content": b""} if takes_bytes else {}
    if not content and (method == "POST" or operation in JSON):
        content = {"json": JSON.get(operation, {})}
    with (
        client() as asking,
        asking.stream(method, f"{stage.running.url}{path}", headers=headers, **content) as found,
    ):
        if found.headers.get("content-type", "").startswith("text/event-stream"):
            return found  # it never ends
        found.read()
        return found


def test_every_route_is_on_a_list(stage: Stage) -> None:
    lists = [OPEN, READ, NODE, OPERATE, JOBS | {BODIES}]
    assert sorted(route for one in lists for route in one) == operations(stage.running)


@pytest.mark.parametrize("role", MAY)
def test_what_is_not_allowed_is_denied(stage: Stage, roles: Roles, role: str) -> None:
    allowed = MAY[role] | (
        ALSO_WHERE_READING_IS_OPEN.get(role, set()) if stage.running.settings.anonymous_read else set()
    )
    wrong, whole = [], stage.picture()
    for operation in operations(stage.running):
        if role in ("node", "another node") and operation == "POST /api/v1/leave":
            continue  # it would take the stage apart
        hub = stage.running.runner("main").hub
        before = hub.snapshot()
        found = ask(stage, operation, roles[role])
        if (found.status_code in (401, 403)) == (operation in allowed - {"POST /api/v1/enrol", "POST /api/v1/session"}):
            wrong.append(f"{role} {operation}: {found.status_code}")
        if found.status_code in (401, 403):
            if not operation.startswith("HEAD"):
                assert found.json()["hint"]
                assert found.json()["code"].partition(".")[0] in ("auth", "token", "node")
            assert (found.status_code == 401) == (found.headers.get("www-authenticate") == "Bearer")
            assert hub.snapshot() == before or role == "operator", operation
    assert not wrong, "\n".join(wrong)
    if not allowed & (NODE | OPERATE):
        assert stage.picture() == whole


def test_a_node_gets_no_other_nodes_update(coordinator: Inside) -> None:
    stage = set_up(coordinator)
    roles = {node.node: {"Authorization": node.client.headers["Authorization"]} for node in stage.nodes}
    roles |= {"nobody": {"Authorization": ""}, "operator": {}}
    roles["viewer"] = {"Authorization": f"Bearer {coordinator.post('/tokens', {'role': 'viewer'})['token']}"}
    data = body(displacement("n1", 0, SIZE))
    digest = hashlib.sha256(data).hexdigest()
    assert stage.send("n1", "PUT", f"/jobs/main/blobs/{digest}", content=data).status_code == 201
    path = f"/api/v1/jobs/main/blobs/{digest}"
    for role, headers in roles.items():
        found = coordinator.request("GET", path, headers=headers)
        assert found.status_code in (401, 403, 404, 409), f"{role}: {found.status_code}"
        assert data not in found.content
    stage.close()


def test_the_documentation_and_the_pages_are_open(stage: Stage) -> None:
    for path in ("/docs", "/openapi.json", "/", "/jobs/main"):
        assert stage.running.request("GET", path, headers={"Authorization": ""}).status_code == 200, path
    assert stage.running.request("GET", "/api/v1/", headers={"Authorization": ""}).status_code == 404


@pytest.mark.parametrize("path", ["/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/assets/../../pyproject.toml", "/%00"])
def test_pages_are_no_way_out_of_their_folder(stage: Stage, path: str) -> None:
    found = stage.running.request("GET", path, headers={"Authorization": ""})
    assert b"root:" not in found.content
    assert b"[project]" not in found.content
    assert found.status_code < 500


# Sessions


@pytest.fixture
def browser(coordinator: Inside) -> Iterator[httpx.Client]:
    """Signed in as an operator."""
    with client(base_url=coordinator.url) as asking:
        assert asking.post("/api/v1/session", json={"token": OPERATOR}).status_code == 204
        yield asking


def test_a_cookie_is_out_of_reach_of_scripts_and_sites(coordinator: Inside) -> None:
    with client() as asking:
        found = asking.post(f"{coordinator.url}/api/v1/session", json={"token": OPERATOR})
    cookie = found.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert OPERATOR not in cookie


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "", None, "http://127.0.0.1:1"])
@pytest.mark.parametrize("operation", ["POST /api/v1/tokens", "DELETE /api/v1/nodes/x", "DELETE /api/v1/session"])
def test_another_sites_request_is_refused(browser: httpx.Client, origin: str | None, operation: str) -> None:
    method, path = operation.split(" ")
    headers = {} if origin is None else {"Origin": origin}
    problem(browser.request(method, path, headers=headers, json={}), 403, "auth.forbidden")
    assert browser.get("/api/v1/session").json() == {"role": "operator"}


def test_our_own_pages_request_is_not(browser: httpx.Client, coordinator: Inside) -> None:
    ours = {"Origin": coordinator.url}
    assert browser.post("/api/v1/tokens", json={}, headers=ours).status_code == 201
    assert browser.delete("/api/v1/session", headers=ours).status_code == 204
    problem(browser.post("/api/v1/tokens", json={}, headers=ours), 401, "auth.missing")


def test_a_viewer_who_signs_in_stays_a_viewer(coordinator: Inside) -> None:
    token = coordinator.post("/tokens", {"role": "viewer"})["token"]
    with client(base_url=coordinator.url) as asking:
        assert asking.post("/api/v1/session", json={"token": token}).status_code == 204
        assert asking.get("/api/v1/session").json() == {"role": "viewer"}
        problem(asking.post("/api/v1/tokens", json={}, headers={"Origin": coordinator.url}), 403, "auth.forbidden")


def test_nodes_do_not_sign_in(coordinator: Inside) -> None:
    node = by_hand(coordinator, "climber")
    credential = node.client.headers["Authorization"].removeprefix("Bearer ")
    node.client.close()
    problem(coordinator.request("POST", "/api/v1/session", json={"token": credential}), 401, "auth.refused")


def test_sessions_and_tokens_end(tmp_path_factory: pytest.TempPathFactory) -> None:
    with inside(tmp_path_factory.mktemp("short") / "data", session_ttl_s=0.2, anonymous_read=False) as running:
        spent = running.token(ttl_s=1e-6)
        with client(base_url=running.url) as asking:
            assert asking.post("/api/v1/session", json={"token": OPERATOR}).status_code == 204
            until("the session to end", lambda: asking.get("/api/v1/session").json() == {"role": None})
        wanted = {"token": spent, "name": "late"}
        problem(
            running.request("POST", "/api/v1/enrol", json=wanted, headers={"Authorization": ""}), 401, "token.invalid"
        )


def test_sessions_and_tokens_outlive_the_process(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("again") / "data"
    with inside(folder, anonymous_read=False) as running:
        viewer = running.post("/tokens", {"role": "viewer"})["token"]
        node = by_hand(running, "keeps")
        with client() as asking:
            asking.post(f"{running.url}/api/v1/session", json={"token": OPERATOR})
            cookie = asking.cookies["shoal_session"]
    credential = node.client.headers["Authorization"]
    node.client.close()
    with inside(folder, anonymous_read=False) as running:
        for headers in ({"Authorization": f"Bearer {viewer}"}, {"Cookie": f"shoal_session={cookie}"}):
            with client(headers=headers) as asking:
                assert asking.get(f"{running.url}/api/v1/jobs").status_code == 200
        answer = running.request("POST", "/api/v1/hello", json={}, headers={"Authorization": credential})
        assert answer.status_code == 200
        assert running.request("DELETE", "/api/v1/nodes/keeps").status_code == 204
        answer = running.request("POST", "/api/v1/hello", json={}, headers={"Authorization": credential})
        problem(answer, 401, "node.removed")
    with inside(folder) as running:
        assert running.get("/nodes") == {"nodes": [], "next": None}
        answer = running.request("POST", "/api/v1/hello", json={}, headers={"Authorization": credential})
        problem(answer, 401, "node.removed")


# Revocation


def test_a_revoked_node_is_out_at_once_also_in_the_middle_of_a_poll(tmp_path_factory: pytest.TempPathFactory) -> None:
    with inside(tmp_path_factory.mktemp("out") / "data", poll_s_max=2 * PATIENCE_S) as running:
        stage = set_up(running, schedule={"min_nodes": 2})
        try:
            answers: list[int] = []
            task = stage.tasks["n0"].id
            params = {"wait_s": 2 * PATIENCE_S, "held": f"main:{task[0]}.{task[1]}"}
            poll = threading.Thread(
                target=lambda: answers.append(stage.send("n0", "GET", "/work", params=params).status_code)
            )
            poll.start()
            until("the poll to be open", lambda: running.coordinator.nodes.presence._open_polls["n0"])
            assert running.request("DELETE", "/api/v1/nodes/n0").status_code == 204
            running.loop.call_soon_threadsafe(running.coordinator.nodes.wakeups.notify_all)
            poll.join(PATIENCE_S)
            assert answers == [401]
            assert not running.runner("main").hub.roster["n0"].is_present
            problem(stage.report(node="n0"), 401, "node.removed")
            names = [node["name"] for node in running.get("/nodes")["nodes"]]
            assert names == ["n1", "n2"]
            task_of(stage.nodes[2], "main")  # another node does its work
        finally:
            stage.close()


def test_no_node_is_called_as_the_coordinators_side_is(coordinator: Inside) -> None:
    """Messages to "hub" go to the coordinator. The token is not spent on it."""
    token = coordinator.token()
    wanted = {"token": token, "name": HUB}
    found = problem(coordinator.request("POST", "/api/v1/enrol", json=wanted), 422, "node.reserved")
    assert "--name" in found["hint"]
    assert coordinator.get("/nodes")["nodes"] == []
    assert coordinator.request("POST", "/api/v1/enrol", json={**wanted, "name": "hub-1"}).status_code == 201


def test_a_removed_name_can_be_enrolled_anew(coordinator: Inside) -> None:
    first = by_hand(coordinator, "phoenix")
    assert coordinator.request("DELETE", "/api/v1/nodes/phoenix").status_code == 204
    second = by_hand(coordinator, "phoenix")
    assert first.client.post(f"{coordinator.url}/api/v1/hello", json={}).status_code == 401
    assert second.client.post(f"{coordinator.url}/api/v1/hello", json={}).status_code == 200
    first.client.close(), second.client.close()
    found = problem(coordinator.request("DELETE", "/api/v1/nodes/phoenx"), 404, "node.unknown")
    assert "did you mean phoenix?" in found["hint"]
    assert FAST["operator_token"] == OPERATOR


def test_the_document_is_made_once(coordinator: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    first = httpx.get(f"{coordinator.url}/openapi.json")
    assert first.json() == json.loads(document())
    monkeypatch.setattr("shoal_coordinator.api.app.JSONResponse", None)  # the values needed to make it again
    again = httpx.get(f"{coordinator.url}/openapi.json")
    assert again.content == first.content
    assert again.headers["content-type"] == "application/json"
