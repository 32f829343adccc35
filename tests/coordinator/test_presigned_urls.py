"""Bodies past the coordinator: real edge clients, a coordinator in a process of its own, a store that speaks S3."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shoal.core.protocol.message import BlobRef
from shoal.model_file import save_base
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage.blobs.places import open_store
from shoal_coordinator.storage.blobs.s3 import S3Store
from shoal_coordinator.storage.blobs.store import BlobStore
from tests.support.based_learner import learner
from tests.support.cluster import Fleet, doubled
from tests.support.coordinator import Api, Inside, Server, inside
from tests.support.edge_node import EdgeNode
from tests.support.history import final
from tests.support.learners import VectorLearner
from tests.support.node import body, displacement
from tests.support.proxy import Proxy
from tests.support.s3 import KEY_ID, S3, SECRET
from tests.support.sampling import nightly
from tests.support.scenario import Stage, by_hand, problem, set_up
from tests.support.waiting import until

KEYS: dict[str, Any] = {"blobs_key_id": KEY_ID, "blobs_secret": SECRET}
LARGE = 100_000
"""Numbers of a model that is too large for a frame."""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    store = S3()
    yield store
    store.close()


@pytest.fixture
def bucket(s3: S3) -> Iterator[str]:
    s3.seen.clear()
    s3.sent.clear()
    yield s3.bucket(f"b{secrets.token_hex(6)}")
    s3.feel("")
    s3.late_s = 0.0


def edges(api: Api, url: str, folder: Path) -> list[EdgeNode]:
    """Edge clients as they are deployed, but for their process."""
    given = [{"url": url, "token": api.token(), "name": name, "state_dir": folder / name} for name in ("n0", "n1")]
    return [EdgeNode(VectorLearner(LARGE), jobs=["a"], poll_wait_s=5.0, **one).start() for one in given]


def on_files(tmp_path: Path, rounds: int) -> str:
    """The last model of the same job on local files."""
    with inside(tmp_path / "files") as running:
        running.begin("a", nodes=2, rounds=rounds)
        for edge in edges(running, running.url, tmp_path / "edges-files"):
            edge.finish()
        until("the job to end", lambda: running.job("a")["ended_at"])
        return final(running, "a")


def past(s3: S3, method: str) -> int:
    """Requests that nodes have made of the store."""
    return sum(1 for how, _, signed in s3.seen if signed and how == method)


def test_a_job_over_s3_with_a_kill_in_mid_round_ends_with_the_model_of_local_files(
    s3: S3, bucket: str, tmp_path: Path, server: Callable[..., Server]
) -> None:
    running = server(blobs=bucket, **KEYS).start()
    running.begin("a", nodes=2, rounds=6)
    proxy = Proxy(lambda: running.url)
    try:
        nodes = edges(running, proxy.url, tmp_path / "edges")
        for version in (1, 3):
            until("some rounds to close", lambda v=version: running.job("a")["version"] >= v)
            until("an update in the store that no report has named", lambda v=version: past(s3, "PUT") > 2 * v)
            running.kill()
            running.start()
        for node in nodes:
            node.finish()
        until("the job to end", lambda: running.job("a")["ended_at"])
        assert final(running, "a") == on_files(tmp_path, 6)
    finally:
        proxy.close()
    assert past(s3, "PUT") >= 6, "updates went past the coordinator (equal ones of two nodes are one)"
    assert past(s3, "GET") >= 10, "and so did the models"
    store = open_store(Settings(blobs=bucket, **KEYS))
    assert not list(store.list(".incoming")), "what was looked at is cleared away"


def test_three_coordinators_over_s3_take_over_with_what_is_in_the_store(
    s3: S3, bucket: str, tmp_path: Path, fleet: Callable[..., Fleet]
) -> None:
    """Each has a folder of its own: models and updates reach the next leader by way of the store alone."""
    three = fleet(3, 1.5, blobs=bucket, **KEYS)
    three.begin("a", nodes=2, rounds=8)
    proxy = Proxy(lambda: three.url)
    try:
        nodes = edges(three, proxy.url, tmp_path / "edges")
        owners = []
        for version in (1, 3, 5):
            until("some rounds to close", lambda v=version: three.job("a")["version"] >= v)
            owners.append(three.owner())
            until("an update in the store that no report has named", lambda v=version: past(s3, "PUT") > 2 * v)
            owners[-1].kill()
            until("another owner", lambda: three.owner() is not owners[-1])
            owners[-1].start(ready=False)
        for node in nodes:
            node.finish()
        until("the job to end", lambda: three.job("a")["ended_at"])
        assert final(three, "a") == on_files(tmp_path, 8)
    finally:
        proxy.close()
    assert len({id(owner) for owner in owners}) > 1
    assert doubled(three.database_url) == []
    assert past(s3, "PUT") >= 8, "updates went past all of them"
    assert not list(open_store(Settings(blobs=bucket, **KEYS)).list(".incoming")), "what was looked at is cleared away"


def booked(running: Inside, direction: str) -> int:
    query = "SELECT COALESCE(SUM(head_bytes + body_bytes), 0) FROM traffic WHERE direction = ?"
    return int(running.rows(query, direction)[0][0])


def test_every_byte_that_went_past_is_counted(s3: S3, bucket: str, tmp_path: Path) -> None:
    beside = Proxy(lambda: s3.endpoint)
    running = Inside(tmp_path / "data", blobs=f"{bucket}&public={beside.url}", **KEYS).start()
    direct = running.url
    proxy = Proxy(lambda: direct)
    try:
        running.url = proxy.url
        running.begin("a", nodes=2, rounds=3)
        for node in edges(running, proxy.url, tmp_path / "edges"):
            node.finish()
        until("the job to end", lambda: running.job("a")["ended_at"])
        rows = running.get("/jobs/a/traffic", by=["kind"])["rows"]
    finally:
        running.stop()
        proxy.close()
        beside.close()
    assert beside.up > 6 * 4 * LARGE
    assert beside.down > 4 * 4 * LARGE
    assert (booked(running, "up"), booked(running, "down")) == (proxy.up + beside.up, proxy.down + beside.down)
    sizes = {(row["kind"], row["direction"]): row["bytes"] for row in rows}
    assert sizes["blob", "up"] > 6 * 4 * LARGE
    assert sizes["model", "down"] > 4 * 4 * LARGE


@pytest.mark.parametrize("ill", nightly(["expired", "down", "denied"], but=["expired"]))
def test_what_the_store_does_not_take_or_give_goes_through_the_coordinator(
    s3: S3, bucket: str, tmp_path: Path, ill: str
) -> None:
    gone = "&public=http://127.0.0.1:9" if ill == "down" else ""
    with inside(tmp_path / "data", blobs=bucket + gone, **KEYS) as r:
        s3.late_s = 3700.0 if ill == "expired" else 0.0
        s3.deny_signed = ill == "denied"
        try:
            r.begin("a", nodes=2, rounds=2)
            for node in edges(r, r.url, tmp_path / "edges"):
                node.finish()
            until("the job to end", lambda: r.job("a")["ended_at"])
        finally:
            s3.deny_signed = False
        assert final(r, "a") == on_files(tmp_path, 2)


@pytest.mark.parametrize(
    ("mood", "status"), nightly([("SlowDown", 503), ("AccessDenied", 403)], but=[("SlowDown", 503)])
)
def test_a_run_goes_on_when_the_store_is_back(s3: S3, bucket: str, tmp_path: Path, mood: str, status: int) -> None:
    with inside(tmp_path / "data", blobs=bucket, **KEYS) as running:
        running.begin("a", nodes=2, rounds=4)
        nodes = edges(running, running.url, tmp_path / "edges")
        until("a round to close", lambda: running.job("a")["version"] >= 1)
        s3.feel(mood, status)
        refused = len(s3.seen)
        until("somebody to notice", lambda: len(s3.seen) > refused + 3)
        s3.feel("")
        for node in nodes:
            node.finish()
        until("the job to end", lambda: running.job("a")["ended_at"])
        assert final(running, "a") == on_files(tmp_path, 4)


def base_rows(running: Inside) -> list[dict[str, Any]]:
    rows = running.get("/jobs/a/traffic", by=["kind", "node"])["rows"]
    return [one for one in rows if (one["kind"], one["direction"]) == ("base", "down") and one["body_bytes"] > 1000]


def test_a_node_fetches_its_base_model_from_the_store(s3: S3, bucket: str, tmp_path: Path) -> None:
    data = save_base(learner(base=7), tmp_path / "base.safetensors").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    with inside(tmp_path / "data", blobs=bucket, **KEYS) as running:
        assert running.request("PUT", f"/api/v1/bases/{digest}", content=data).status_code == 201
        schedule = {"name": "rounds", "min_nodes": 1}
        running.post("/jobs", {"spec": {"name": "a", "rounds": 1, "schedule": schedule}, "base_model": digest})
        node = by_hand(running, "n1")
        presigned = node.ask("GET", f"/jobs/a/blobs/{digest}/presign").json()
        node.ask("POST", "/leave")
        node.client.close()
        rest = httpx.get(presigned["url"], headers={"range": "bytes=100-"})
        assert (rest.status_code, rest.content) == (206, data[100:]), "an interrupted download goes on"
        s3.seen.clear()
        given: Any = {"url": running.url, "token": running.token(), "name": "n0", "state_dir": tmp_path / "n0"}
        EdgeNode(learner(), jobs=["a"], poll_wait_s=1.0, **given).start().finish()
        (row,) = base_rows(running)
    fetched = [path for method, path, signed in s3.seen if signed and method == "GET" and path.endswith(f"a/{digest}")]
    assert len(fetched) == 1, "past the coordinator"
    assert row["node"] == "n0"
    assert len(data) < row["body_bytes"] < 2 * len(data), "counted all the same, with the answer that has its address"


# By hand


@pytest.fixture
def stage(bucket: str, tmp_path: Path) -> Iterator[Stage]:
    """Nodes for which orders stand, and that do what the test says."""
    with inside(tmp_path / "data", blobs=bucket, **KEYS) as running:
        made = set_up(running, "a", LARGE)
        yield made
        made.close()


DATA = body(displacement("n0", 0, LARGE))
REF = BlobRef(hashlib.sha256(DATA).hexdigest(), len(DATA))
PATH = f"/jobs/a/blobs/{REF.digest}/presign"


def put(stage: Stage, data: bytes = DATA, nbytes: int = len(DATA)) -> int:
    """Ask where that body is to go, and put something there; the store's answer."""
    target = stage.send("n0", "POST", PATH, json={"bytes": nbytes}).json()
    assert (target["method"], target["version"]) == ("PUT", 0)
    return httpx.put(target["url"], headers=target["headers"], content=data).status_code


def reported(stage: Stage) -> httpx.Response:
    head, _ = stage.frame(DATA)
    return stage.send("n0", "POST", "/jobs/a/reports", content=head)


def store_of(stage: Stage) -> BlobStore:
    return stage.running.coordinator.blobs.store


def test_what_was_put_there_counts_when_it_is_reported(stage: Stage, s3: S3) -> None:
    assert problem(reported(stage), 409, "blob.missing")
    assert put(stage) == 200
    assert store_of(stage).size(f"a/{REF.digest}") is None, "nobody has looked at it"
    assert reported(stage).status_code == 200
    assert store_of(stage).size(f"a/{REF.digest}") == REF.nbytes
    assert not list(store_of(stage).list(".incoming"))
    assert not [path for path, _ in s3.sent if REF.digest in path], "the store copies it: it is not sent there again"


def test_what_is_not_what_was_read_any_more_is_sent_to_the_store(
    stage: Stage, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that lets a node change what it has put there must not make another update of one that was checked."""
    copy = S3Store.copy

    def late(store: S3Store, source: str, key: str, mark: str) -> bool:
        store.delete(source)
        store.put(source, OTHER)
        return copy(store, source, key, mark)

    monkeypatch.setattr(S3Store, "copy", late)
    assert put(stage) == 200
    assert reported(stage).status_code == 200
    assert b"".join(store_of(stage).get(f"a/{REF.digest}")) == DATA
    assert [length for path, length in s3.sent if REF.digest in path][-1:] == [len(DATA)]


OTHER = body(displacement("n1", 0, LARGE))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (OTHER, "blob.digest"),
        (DATA + b"x", "payload.length"),
        (DATA[:-1], "payload.short"),
        (b"x" * len(DATA), "payload"),
    ],
    ids=["another body", "too long", "too short", "no body"],
)
def test_a_store_that_takes_anything_is_not_believed(stage: Stage, data: bytes, code: str) -> None:
    before = stage.picture()
    store_of(stage).put(f".incoming/a/n0/{REF.digest}", data)
    answer = reported(stage)
    assert answer.status_code == 422
    assert answer.json()["code"].startswith(code)
    assert stage.picture() == before
    assert not list(store_of(stage).list(".incoming")), "it is gone"
    assert put(stage) == 200
    assert reported(stage).status_code == 200


def test_the_address_is_bound_to_size_and_hash(stage: Stage) -> None:
    assert put(stage, OTHER) == 400
    assert problem(stage.send("n0", "POST", PATH, json={"bytes": 2**50}), 413, "body.too-large")
    assert problem(reported(stage), 409, "blob.missing")


def test_nobody_is_sent_to_what_his_order_does_not_name(stage: Stage) -> None:
    named = stage.tasks["n0"].blob
    assert named is not None
    target = stage.send("n0", "GET", f"/jobs/a/blobs/{named.digest}/presign").json()
    assert hashlib.sha256(httpx.get(target["url"]).content).hexdigest() == named.digest
    problem(stage.send("n0", "GET", PATH), 409, "task.superseded")
    problem(stage.send("n2", "GET", f"/jobs/a/blobs/{named.digest}/presign"), 409, "task.none")
    problem(stage.send("n2", "POST", PATH, json={"bytes": 9}), 409, "task.none")


def test_what_is_told_twice_is_booked_once(stage: Stage) -> None:
    told = {"id": "0" * 16, "digest": REF.digest, "direction": "up", "version": 0, "requests": 1}
    told |= {"up_head": 1, "up_body": 10**9, "down_head": 2, "down_body": 3}
    before = stage.running.job("a")["up_bytes"]
    for number in ("0", "0", "1"):
        assert stage.send("n0", "POST", "/jobs/a/transfers", json={**told, "id": number * 16}).status_code == 204
    assert stage.running.job("a")["up_bytes"] - before == pytest.approx(2 * (10**9 + 1), abs=10**5)


def test_what_nobody_reports_is_cleared_away(stage: Stage) -> None:
    put(stage)
    blobs = stage.running.runner("a").blobs
    assert blobs.partials.drop(60.0) == 0
    assert blobs.partials.drop(-60.0) == 1
    assert not list(store_of(stage).list(".incoming"))


def test_a_coordinator_on_files_sends_nobody_away(tmp_path: Path) -> None:
    with inside(tmp_path / "data") as running:
        stage = set_up(running, "a", LARGE)
        target = stage.send("n0", "POST", PATH, json={"bytes": REF.nbytes}).json()
        assert target["url"] == f"/api/v1/jobs/a/blobs/{REF.digest}"
        stage.close()
