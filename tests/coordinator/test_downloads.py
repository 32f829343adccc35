"""Models as files: immutable under their hash, in whole or in part, and never a byte that is not theirs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.coordinator import Inside, inside
from tests.support.node import body, initial
from tests.support.scenario import Stage, problem, set_up, task_of

SIZE = 400_000
DATA = body(initial(SIZE))
DIGEST = hashlib.sha256(DATA).hexdigest()
ETAG = f'"sha256:{DIGEST}"'
PATHS = ["/jobs/main/models/0", f"/jobs/main/blobs/{DIGEST}"]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with inside(tmp_path_factory.mktemp("files") / "data", lease_s=3600) as running:
        made = set_up(running, size=SIZE)
        yield made
        made.close()


def get(stage: Stage, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return stage.running.request(method, f"/api/v1{path}", headers=named)


@pytest.mark.parametrize("path", PATHS)
def test_the_whole(stage: Stage, path: str) -> None:
    found = get(stage, path)
    assert found.status_code == 200
    assert found.content == DATA
    assert found.headers["etag"] == ETAG
    assert found.headers["accept-ranges"] == "bytes"
    assert "immutable" in found.headers["cache-control"]
    assert found.headers["content-type"] == "application/vnd.safetensors"
    assert found.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-99", 0, 100),
        ("bytes=1000-", 1000, len(DATA)),
        ("bytes=-1", len(DATA) - 1, len(DATA)),
        ("bytes=-1000", len(DATA) - 1000, len(DATA)),
        (f"bytes=-{len(DATA) * 2}", 0, len(DATA)),
        (f"bytes={len(DATA) - 1}-{len(DATA) * 2}", len(DATA) - 1, len(DATA)),
        (f"bytes=600000-{len(DATA) - 1}", 600_000, len(DATA)),
    ],
)
def test_a_part(stage: Stage, path: str, asked: str, start: int, stop: int) -> None:
    found = get(stage, path, Range=asked)
    assert found.status_code == 206
    assert found.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(DATA)}"
    assert found.headers["content-length"] == str(stop - start)
    assert found.content == DATA[start:stop]


@pytest.mark.parametrize("asked", [f"bytes={len(DATA)}-", f"bytes={10**17}-", "bytes=-0"])
def test_a_part_that_is_not_there(stage: Stage, asked: str) -> None:
    problem(get(stage, PATHS[0], Range=asked), 416, "upload.range")


@pytest.mark.parametrize("asked", ["bytes=5-2", "bytes=-", "bytes=0-1,5-6", "lines=1-2", "bytes=x-", "bytes=1" * 99])
def test_an_unclear_part_is_the_whole(stage: Stage, asked: str) -> None:
    found = get(stage, PATHS[0], Range=asked)
    assert found.status_code == 200
    assert found.content == DATA


@pytest.mark.parametrize("known", [ETAG, f"W/{ETAG}", f'"other", {ETAG}', "*"])
def test_what_is_known_is_not_sent(stage: Stage, known: str) -> None:
    found = get(stage, PATHS[0], If_None_Match=known, Range="bytes=0-9")
    assert found.status_code == 304
    assert found.content == b""
    assert found.headers["etag"] == ETAG


@pytest.mark.parametrize("known", ['"other"', DIGEST, "", '"*"'])
def test_what_is_not_known_is_sent(stage: Stage, known: str) -> None:
    assert get(stage, PATHS[0], If_None_Match=known).status_code == 200


@pytest.mark.parametrize(("condition", "status"), [(ETAG, 206), ('"other"', 200), (f"W/{ETAG}", 200)])
def test_a_part_only_of_the_same_file(stage: Stage, condition: str, status: int) -> None:
    found = get(stage, PATHS[0], Range="bytes=10-19", If_Range=condition)
    assert found.status_code == status
    assert found.content == (DATA[10:20] if status == 206 else DATA)


def test_the_head_alone(stage: Stage) -> None:
    found = get(stage, PATHS[0], "HEAD")
    assert found.status_code == 200
    assert found.headers["content-length"] == str(len(DATA))
    assert found.headers["etag"] == ETAG
    assert found.content == b""
    assert get(stage, PATHS[0], "HEAD", Range="bytes=0-9").headers["content-length"] == "10"


def test_a_node_reads_what_its_order_names(stage: Stage) -> None:
    path = f"/jobs/main/blobs/{DIGEST}"
    assert stage.send("n0", "GET", path).content == DATA
    assert stage.send("n0", "GET", path, headers={"Range": "bytes=100000-"}).content == DATA[100_000:]
    problem(stage.send("n2", "GET", path), 409, "task.none")
    problem(stage.send("n0", "GET", f"/jobs/main/blobs/{'0' * 64}"), 409, "task.superseded")


def test_the_blob_of_a_superseded_order_is_refused_with_the_way_on(tmp_path: Path) -> None:
    """No request is forbidden: the node polls, and gets the task that stands, with its blob."""
    with inside(tmp_path / "data") as running:
        stage = set_up(running, size=SIZE, schedule={"min_nodes": 2, "cohort": 1, "over_select": 1})
        first = stage.tasks["n0"].blob
        assert first is not None
        assert stage.send("n2", "POST", "/leave").status_code == 204
        assert stage.nodes[1].report("main", stage.tasks["n1"]).counted, "which closes the round without n0"
        second, _ = task_of(stage.nodes[0], "main")
        assert second.version == 1
        assert second.blob is not None
        found = problem(stage.send("n0", "GET", f"/jobs/main/blobs/{first.digest}"), 409, "task.superseded")
        assert "poll" in found["hint"]
        assert stage.send("n0", "GET", f"/jobs/main/blobs/{second.blob.digest}").status_code == 200
        stage.close()


def test_a_download_is_not_disturbed_by_the_file_going_away(stage: Stage) -> None:
    blobs = stage.running.runner("main").blobs
    kept = blobs.path(DIGEST).read_bytes()
    try:
        with stage.running._client.stream("GET", f"{stage.running.url}/api/v1{PATHS[0]}") as found:
            pieces = found.iter_bytes(1000)
            first = next(pieces)
            blobs.delete(DIGEST)
            assert first + b"".join(pieces) == DATA
        problem(get(stage, PATHS[0]), 410, "model.gone")
    finally:
        blobs.path(DIGEST).write_bytes(kept)


def test_a_damaged_file_is_not_sent(stage: Stage) -> None:
    """A file that has become shorter must neither hang the coordinator nor pass for the model."""
    path = stage.running.runner("main").blobs.path(DIGEST)
    try:
        path.write_bytes(DATA[:-1000])
        problem(get(stage, PATHS[0]), 503, "storage.damaged")
        assert stage.running.request("GET", "/healthz").status_code == 200
    finally:
        path.write_bytes(DATA)


def test_a_file_that_becomes_shorter_while_it_is_sent_breaks_the_connection(coordinator: Inside) -> None:
    size = 8_000_000
    stage = set_up(coordinator, "big", size=size)
    stage.close()
    version = coordinator.get("/jobs/big/versions")["versions"][0]
    path = coordinator.runner("big").blobs.path(version["digest"])
    with coordinator._client.stream("GET", f"{coordinator.url}/api/v1/jobs/big/models/0") as found:
        pieces = found.iter_raw(1000)
        next(pieces)
        path.write_bytes(path.read_bytes()[:1000])
        with pytest.raises(httpx.TransportError):
            assert sum(len(piece) for piece in pieces) < version["bytes"]
    assert coordinator.request("GET", "/healthz").status_code == 200
