"""No text that cannot be stored and shown gets in, by any route, in any field, from any caller."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from shoal_coordinator.api.openapi import document
from tests.support.coordinator import OPERATOR, inside
from tests.support.scenario import Stage, problem, set_up

HALF, NUL = "\\udce9", "\\u0000"
PATHS: dict[str, dict[str, Any]] = json.loads(document())["paths"]
OPERATIONS = [
    (method.upper(), path, spec)
    for path, methods in PATHS.items()
    for method, spec in methods.items()
    if path != "/api/v1/stream"  # its answer has no end; errors in its address are found before it begins
]
WITH_JSON = [
    (m, p) for m, p, spec in OPERATIONS if "application/json" in spec.get("requestBody", {}).get("content", {})
]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with inside(tmp_path_factory.mktemp("texts") / "data", poll_s_max=0.01, lease_s=3600.0) as running:
        made = set_up(running)
        yield made
        made.close()


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60) as made:
        yield made


@pytest.fixture
def ask(stage: Stage, client: httpx.Client) -> Any:
    """Send a request with a role's credential."""
    node = stage.nodes[0].client.headers["authorization"]
    secrets = {"operator": f"Bearer {OPERATOR}", "node": node}

    def asked(method: str, path: str, body: bytes | None = None, role: str = "operator") -> httpx.Response:
        headers = {"Authorization": secrets[role]} if role in secrets else {}
        headers |= {"Content-Type": "application/json"} if body is not None else {}
        return client.request(method, stage.running.url + path, content=body, headers=headers)

    return asked


def placed(path: str, value: str = "main") -> str:
    """A route's path with that in each place of it."""
    return "/".join(value if part.startswith("{") else part for part in path.split("/"))


def test_there_are_routes_to_be_tried() -> None:
    assert len(OPERATIONS) > 50
    assert len(WITH_JSON) > 15
    assert ("POST", "/api/v1/jobs/{job}/pause") in WITH_JSON


@pytest.mark.parametrize(("method", "path"), WITH_JSON, ids=[f"{m} {p}" for m, p in WITH_JSON])
def test_no_json_body_brings_one(ask: Any, method: str, path: str) -> None:
    """Fields of any name and depth are checked, also future ones."""
    for bad in (HALF, NUL):
        text = json.dumps({"why": "x", "spec": {"a": [{"b": "x"}]}}).replace("x", f"x{bad}").encode()
        answers = [ask(method, placed(path), text, role) for role in ("nobody", "operator", "node")]
        assert all(answer.status_code < 500 for answer in answers), [answer.text for answer in answers]
        codes = {answer.json()["code"] for answer in answers}
        assert "text.invalid" in codes, codes
        assert codes <= {"text.invalid", "auth.missing", "auth.forbidden", "auth.refused"}, codes


@pytest.mark.parametrize(("method", "path", "spec"), OPERATIONS, ids=[f"{m} {p}" for m, p, _ in OPERATIONS])
def test_no_address_brings_one(ask: Any, method: str, path: str, spec: dict[str, Any]) -> None:
    names = [one["name"] for one in spec.get("parameters", []) if one["in"] == "query"]
    addresses = [f"{placed(path)}?{name}=a%00b" for name in names] + [placed(path, "ma%00in")] * ("{" in path)
    for address in addresses:
        answer = ask(method, address)
        assert answer.status_code == 422
        assert method == "HEAD" or answer.json()["code"] == "text.invalid"


def test_a_stranger_meets_no_bug(ask: Any) -> None:
    for body in (
        b'{"token": "\\ud800"}',
        b'{"x": "\\ud800"}',
        b'{"token": "\xe9"}',
        b'{"token": "\xed\xa0\x80"}',
        '{"token": "a"}'.encode("utf-16"),
    ):
        problem(ask("POST", "/api/v1/session", body, "nobody"), 422, "text.invalid")


def test_a_pause_with_a_broken_reason_breaks_nothing(ask: Any) -> None:
    problem(ask("POST", "/api/v1/jobs/main/pause", b'{"why": "caf\\udce9"}'), 422, "text.invalid")
    for path in ("/api/v1/jobs", "/api/v1/jobs/main", "/api/v1/jobs/main/events"):
        assert ask("GET", path).status_code == 200
    whole = b'{"why": "caf\\u00e9 \\ud83d\\ude00"}'
    assert ask("POST", "/api/v1/jobs/main/pause", whole).json()["state_why"] == "café 😀"
    assert ask("POST", "/api/v1/jobs/main/resume", b'{"why": "again"}').status_code == 200
