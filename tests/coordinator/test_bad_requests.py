"""Wrong requests of users, strangers and hostile nodes, besides reports and uploads."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from shoal.core.protocol.message import Ack, TaskFailed
from shoal.wire import codec
from shoal_coordinator.http.request_limits import STRANGER_BYTES_MAX
from tests.support.clients import client
from tests.support.coordinator import OPERATOR, Inside, fresh, inside
from tests.support.scenario import Stage, by_hand, problem, set_up, task_of
from tests.support.waiting import until

HUGE = 10**30
NOBODY = {"Authorization": ""}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with inside(tmp_path_factory.mktemp("bad") / "data") as running:
        made = set_up(running)
        yield made
        made.close()


def get(path: str, node: str = "", **params: Any) -> Callable[[Stage], httpx.Response]:
    def send(stage: Stage) -> httpx.Response:
        if node:
            return stage.send(node, "GET", path, params=params)
        return stage.running.request("GET", f"/api/v1{path}", params=params)

    return send


def post(path: str, body: Any, node: str = "") -> Callable[[Stage], httpx.Response]:
    """A POST of JSON that may hold what JSON should not."""

    def send(stage: Stage) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if node:
            return stage.send(node, "POST", path, content=content, headers=headers)
        return stage.running.request("POST", f"/api/v1{path}", content=content, headers=headers)

    return send


def job(**spec: Any) -> Callable[[Stage], httpx.Response]:
    return post("/jobs", {"spec": {"name": "wrong", **spec}})


BAD: dict[str, tuple[Callable[[Stage], httpx.Response], int, str]] = {
    "an unknown job": (get("/jobs/nope"), 404, "job.unknown"),
    "versions of an unknown job": (get("/jobs/nope/versions"), 404, "job.unknown"),
    "events of an unknown job": (get("/jobs/nope/events"), 404, "job.unknown"),
    "nodes of an unknown job": (get("/jobs/nope/nodes"), 404, "job.unknown"),
    "traffic of an unknown job": (get("/jobs/nope/traffic"), 404, "job.unknown"),
    "a model of an unknown job": (get("/jobs/nope/models/0"), 404, "job.unknown"),
    "a body of an unknown job": (get(f"/jobs/nope/blobs/{'0' * 64}"), 404, "job.unknown"),
    "the stream of an unknown job": (get("/stream", job="nope"), 404, "job.unknown"),
    "pausing an unknown job": (post("/jobs/nope/pause", {}), 404, "job.unknown"),
    "switching an unknown job": (post("/jobs/nope/switch", {"to": "gossip"}), 404, "job.unknown"),
    "switching to nowhere": (post("/jobs/main/switch", {"to": "away"}), 422, "request.invalid"),
    "switching what must not be": (post("/jobs/main/switch", {"to": "gossip"}), 409, "gossip.not-allowed"),
    "a knock at an unknown job": (post("/jobs/nope/ping", {"term": 1}, "n0"), 404, "job.unknown"),
    "a knock of half a term": (post("/jobs/main/ping", {"term": 1.5}, "n0"), 422, "request.invalid"),
    "a return of no rounds": (post("/jobs/main/join", {"gossip_rounds": [1, None]}, "n0"), 422, "request.invalid"),
    "a job that gossips in an unknown way": (job(gossip={"mixing": {"name": "x"}}), 422, "job.mixing"),
    "a job whose nodes need no vote": (job(gossip={"failover_quorum": 0}), 422, "job.invalid"),
    "a job with an unknown key of gossip": (job(gossip={"alowed": True}), 422, "job.invalid"),
    "a job that never comes back": (job(gossip={"handback_timeout_s": 0}), 422, "job.invalid"),
    "events of an unknown kind": (get("/jobs/main/events", kind="gossip"), 422, "request.invalid"),
    "a version to come": (get("/jobs/main/models/99"), 404, "model.unknown"),
    "a version below zero": (get("/jobs/main/models/-1"), 422, "request.invalid"),
    "a version beyond numbers": (get(f"/jobs/main/models/{HUGE}"), 422, "request.invalid"),
    "an unknown model": (get(f"/jobs/main/blobs/{'0' * 64}"), 404, "blob.unknown"),
    "too many events": (get("/jobs/main/events", limit=10**6), 422, "request.invalid"),
    "an unknown grouping": (get("/jobs/main/traffic", by="color"), 422, "request.invalid"),
    "a stream after a number beyond numbers": (
        lambda s: s.running.request("GET", "/api/v1/stream", headers={"Last-Event-ID": str(HUGE)}),
        422,
        "request.invalid",
    ),
    "a path that is not there": (get("/nowhere"), 404, "path.unknown"),
    "a method that is not there": (lambda s: s.running.request("PATCH", "/api/v1/jobs"), 405, "method.unknown"),
    "a poll of an unknown form": (get("/work", "n0", held="main"), 422, "request.invalid"),
    "a poll that holds no number": (get("/work", "n0", held="main:1.x"), 422, "request.invalid"),
    "a poll for ever": (get("/work", "n0", wait_s=1e9), 422, "request.invalid"),
    "a poll below zero": (get("/work", "n0", wait_s=-1), 422, "request.invalid"),
    "a poll of no number": (get("/work", "n0", wait_s="nan"), 422, "request.invalid"),
    "a poll that holds a lot": (get("/work", "n0", held=["main:1.1"] * 65), 422, "request.invalid"),
    "a beat of an unknown job": (
        post("/heartbeat", {"job": "nope", "task": "1.1", "progress": 0.5}, "n0"),
        404,
        "job.unknown",
    ),
    "a beat beyond the end": (
        post("/heartbeat", {"job": "main", "task": "1.1", "progress": 2}, "n0"),
        422,
        "request.invalid",
    ),
    "a beat of no number": (
        post("/heartbeat", b'{"job":"main","task":"1.1","progress":NaN}', "n0"),
        422,
        "request.invalid",
    ),
    "a failure of an unknown job": (post("/jobs/nope/failures", b"", "n0"), 404, "job.unknown"),
    "a failure that is none": (post("/jobs/main/failures", b"", "n0"), 422, "head.length"),
    "a hello in a foreign tongue": (post("/hello", {"protocols": [99]}, "n0"), 426, "protocol.unknown"),
    "no JSON": (post("/jobs", b"{"), 422, "request.invalid"),
    "deep JSON": (post("/jobs", b"[" * 100_000), 400, "http.400"),
    "JSON with a number of many digits": (post("/jobs", b'{"spec":{"rounds":' + b"9" * 5000 + b"}}"), 400, "http.400"),
    "a large JSON": (post("/jobs", b" " * (2**20 + 1)), 413, "body.too-large"),
    "a job whose name is taken": (job(name="main"), 409, "job.exists"),
    "a job without a name": (post("/jobs", {"spec": {}}), 422, "job.invalid"),
    "a job called ../x": (job(name="../x"), 422, "job.invalid"),
    "a job called .start": (job(name=".start"), 422, "job.invalid"),
    "a job with a line break": (job(name="a\n"), 422, "job.invalid"),
    "a job with an unknown key": (job(roundz=3), 422, "job.invalid"),
    "a job without rounds": (job(rounds=-1), 422, "job.invalid"),
    "a job of too many rounds": (job(rounds=HUGE), 422, "job.invalid"),
    "a job with an unknown algorithm": (job(algorithm={"name": "magic"}), 422, "job.algorithm"),
    "an algorithm with an unknown field": (job(algorithm={"name": "fedavg", "lrr": 1}), 422, "job.algorithm"),
    "an algorithm in words": (job(algorithm={"name": "fedavg", "lr": "much"}), 422, "job.invalid"),
    "a learning rate that is not a number": (job(algorithm={"name": "fedavg", "lr": math.nan}), 422, "request.invalid"),
    "a schedule that never closes": (job(schedule={"name": "rounds", "cohort": 2, "quorum": 3}), 422, "job.invalid"),
    "a patience without an end": (job(init_timeout_s=math.inf), 422, "request.invalid"),
    "a start model that is not here": (
        post("/jobs", {"spec": {"name": "wrong"}, "start_model": "0" * 64}),
        422,
        "job.invalid",
    ),
    "a start model that is not a digest": (
        post("/jobs", {"spec": {"name": "wrong"}, "start_model": "Z" * 64}),
        422,
        "job.invalid",
    ),
    "a held-out learner from a file": (job(held_out={"learner": "/etc/x.py:learner"}), 422, "job.invalid"),
    "a held-out learner that is not here": (job(held_out={"learner": "nowhere.at_all:x"}), 422, "learner.missing"),
    "a token for nobody": (post("/tokens", {"role": "king"}), 422, "request.invalid"),
    "a token for a hostile name": (post("/tokens", {"name": "<b>"}), 422, "request.invalid"),
    "a token for ever": (post("/tokens", {"ttl_s": 1e12}), 422, "request.invalid"),
    "a node that is not there": (lambda s: s.running.request("DELETE", "/api/v1/nodes/nobody"), 404, "node.unknown"),
    "enrolling with a wrong token": (post("/enrol", {"token": "sht_x", "name": "x"}), 401, "token.invalid"),
    "enrolling as ../x": (post("/enrol", {"token": "sht_x", "name": "../x"}), 422, "request.invalid"),
    "enrolling as hub\\n": (post("/enrol", {"token": "sht_x", "name": "hub\n"}), 422, "request.invalid"),
    "enrolling in a foreign tongue": (
        post("/enrol", {"token": "sht_x", "name": "x", "protocols": [2, 3]}),
        426,
        "protocol.unknown",
    ),
    "signing in with nothing": (post("/session", {"token": ""}), 401, "auth.refused"),
    "signing in with a wrong token": (post("/session", {"token": "sho_wrong"}), 401, "auth.refused"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_changes_nothing(stage: Stage, name: str) -> None:
    send, status, code = BAD[name]
    before, jobs = stage.picture(), stage.running.get("/jobs")["jobs"]
    problem(send(stage), status, code)
    assert stage.picture() == before
    assert [job["name"] for job in stage.running.get("/jobs")["jobs"]] == [job["name"] for job in jobs]


def test_nobody_books_bytes_under_names_that_are_not_here(stage: Stage) -> None:
    """A stranger must not be able to fill the books, or the memory, with invented names."""
    running = stage.running
    running.request("POST", "/api/v1/enrol", json={"token": "x", "name": "stranger"}, headers=NOBODY)
    running.request("GET", "/api/v1/stream", params={"job": "stranger"}, headers=NOBODY)
    stage.send("n0", "POST", "/jobs/stranger/reports", content=b"")
    stage.send("n0", "POST", "/jobs/stranger/failures", content=b"")
    for what, values in (("ping", {"term": 1}), ("join", {})):
        stage.send("n0", "POST", f"/jobs/stranger/{what}", json=values)
    for version in (5, 2**62):
        head, data = stage.frame(version=version)
        stage.send("n0", "POST", f"/jobs/{stage.job}/reports", content=head + data)
    running.get("/jobs/main/traffic")
    kept = running.coordinator.telemetry.traffic._of_version
    assert kept.keys() <= {"", "main"}
    assert {version for versions in kept.values() for version in versions} <= {-1, 0}
    assert {key[1] for key in running.coordinator.telemetry.traffic.of_node} <= {"", "n0", "n1", "n2"}


def test_a_failure_on_a_foreign_order_is_answered_and_changes_nothing(stage: Stage) -> None:
    before = stage.picture()
    content = codec.encode(codec.Frame("main", TaskFailed("n0", stage.tasks["n1"].id, "mine now")))
    answer = stage.send("n0", "POST", "/jobs/main/failures", content=content)
    found = codec.decode(answer.content).message
    assert isinstance(found, Ack)
    assert not found.counted
    after = stage.picture()
    before.pop("events"), after.pop("events")  # it is journaled: the hub itself says that it is in vain
    assert after == before


HOSTILE: list[Any] = [
    "<script>alert(1)</script>",
    "\ud800",
    {"deep": json.loads("[" * 400 + "]" * 400)},
    math.nan,
    "\x00\x1b[31m",
    "x" * 100_000,
    {str(i): i for i in range(10_000)},
    10**300,
]


@pytest.mark.parametrize("info", range(len(HOSTILE)))
def test_what_a_node_says_of_itself_breaks_nobody(coordinator: Inside, info: int) -> None:
    name, token = fresh("node"), coordinator.token()
    wanted = json.dumps({"token": token, "name": name, "info": {"platform": HOSTILE[info]}}).encode()
    answer = coordinator.request(
        "POST", "/api/v1/enrol", content=wanted, headers={"Content-Type": "application/json", **NOBODY}
    )
    if answer.status_code == 201:
        who = {"Authorization": f"Bearer {answer.json()['credential']}"}
        said = json.dumps({"info": {"platform": HOSTILE[info]}}).encode()
        again = coordinator.request("POST", "/api/v1/hello", content=said, headers=who)
        assert again.status_code in (200, 422), again.text
    elif len(wanted) > STRANGER_BYTES_MAX:
        problem(answer, 413, "body.too-large")
    else:
        is_text = HOSTILE[info] in ("\ud800", "\x00\x1b[31m")
        problem(answer, 422, "text.invalid" if is_text else "request.invalid")
    assert len(coordinator.request("GET", "/api/v1/nodes").content) < 64 * 1024
    assert coordinator.request("GET", "/api/v1/nodes").status_code == 200


def test_two_nodes_with_one_name(coordinator: Inside) -> None:
    by_hand(coordinator, "twin").client.close()
    wanted = {"token": coordinator.token(), "name": "twin"}
    found = problem(coordinator.request("POST", "/api/v1/enrol", json=wanted, headers=NOBODY), 409, "node.exists")
    assert "twin" in found["detail"]
    wanted["name"] = "other"  # the token was not spent
    assert coordinator.request("POST", "/api/v1/enrol", json=wanted, headers=NOBODY).status_code == 201


def test_one_token_enrols_one_node_also_in_a_race(coordinator: Inside) -> None:
    token, answers = coordinator.token(), []

    def enrol(name: str) -> None:
        with client() as asking:
            answers.append(asking.post(f"{coordinator.url}/api/v1/enrol", json={"token": token, "name": name}))

    threads = [threading.Thread(target=enrol, args=(f"racer{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.status_code for answer in answers) == [201] + [401] * 7
    assert len(coordinator.get("/nodes")["nodes"]) == 1


def test_enrolling_again_gets_the_same_answer_only_with_the_same_key(coordinator: Inside) -> None:
    wanted = {"token": coordinator.token(), "name": "again"}

    def enrol(key: str, name: str = "again") -> httpx.Response:
        headers = {**NOBODY, **({"Idempotency-Key": key} if key else {})}
        return coordinator.request("POST", "/api/v1/enrol", json={**wanted, "name": name}, headers=headers)

    first = enrol("k" * 32)
    assert first.status_code == 201
    assert enrol("k" * 32).json() == first.json()
    assert enrol("k" * 32, "another").status_code == 401
    assert enrol("l" * 32).status_code == 401
    assert enrol("").status_code == 401
    assert enrol("short").status_code == 422
    assert coordinator.request("DELETE", "/api/v1/nodes/again").status_code == 204
    assert enrol("k" * 32).status_code == 401, "a revoked credential must not come back"


def test_a_stale_order_is_answered_by_name(coordinator: Inside) -> None:
    stage = set_up(coordinator, "stale", schedule={"cohort": 1, "over_select": 1, "min_nodes": 2})
    try:
        assert stage.report(node="n0").status_code == 200  # closes the round: n1's task is withdrawn
        answer = codec.decode(stage.report(node="n1").content).message
        assert isinstance(answer, Ack)
        assert not answer.counted
        assert "superseded" in answer.why
        counted = codec.decode(stage.report(node="n0").content).message
        assert isinstance(counted, Ack)
        assert counted.counted, "a duplicate gets the answer of the first"
        reports = until(
            "the version", lambda: [row[0] for row in coordinator.rows("SELECT reports FROM versions WHERE number = 1")]
        )
        assert [len(json.loads(row)) for row in reports] == [1]
    finally:
        stage.close()


def test_a_start_model_that_is_not_finite_is_refused(coordinator: Inside) -> None:
    data = bytes(save({"w": np.array([1.0, math.nan], np.float32)}))
    digest = hashlib.sha256(data).hexdigest()
    problem(coordinator.request("PUT", f"/api/v1/blobs/{digest}", content=data), 422, "payload.not-finite")
    wanted = {"spec": {"name": "nan"}, "start_model": digest}
    problem(coordinator.request("POST", "/api/v1/jobs", json=wanted), 422, "job.invalid")
    assert coordinator.get("/jobs")["jobs"] == []


def test_an_empty_token_file_lets_nobody_in(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A crash or a full disk at the first start must not leave the door open."""
    folder = tmp_path_factory.mktemp("empty")
    (folder / "operator.token").write_text("")
    with inside(folder, operator_token="") as running:
        token = (folder / "operator.token").read_text().strip()
        assert token.startswith("sho_")
        assert (folder / "operator.token").stat().st_mode & 0o077 == 0
        problem(running.request("POST", "/api/v1/session", json={"token": ""}, headers=NOBODY), 401, "auth.refused")
        right = {"Authorization": f"Bearer {token}"}
        assert running.request("POST", "/api/v1/tokens", json={}, headers=right).status_code == 201
        assert running.request("POST", "/api/v1/tokens", json={}).status_code == 401, OPERATOR


def test_an_order_can_be_asked_for_again(stage: Stage) -> None:
    """A poll is a question, not a delivery: who lost the answer asks again."""
    node = next(node for node in stage.nodes if node.node == "n1")
    assert task_of(node, "main")[0] == task_of(node, "main")[0] == stage.tasks["n1"]
