"""Bodies that may not be stored, whole or resumed: refused with cause and remedy, and nothing is left of them."""

from __future__ import annotations

import asyncio
import hashlib
import math
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from shoal.core.protocol.message import Ack
from shoal.wire import payload
from shoal.wire.payload import Layouts, parse_header
from tests.support.coordinator import Inside, inside
from tests.support.node import initial
from tests.support.scenario import Stage, problem, set_up, task_of
from tests.support.waiting import PATIENCE_S, until

SIZE = 70_000
LIMIT = 1_000_000


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with inside(tmp_path_factory.mktemp("bad") / "data", body_bytes_max=LIMIT) as running:
        made = set_up(running, size=SIZE)
        yield made
        made.close()


def model(value: float = 0.0, place: int = 0, **more: Any) -> bytes:
    values = np.zeros(SIZE, np.float32)
    values[place] = value
    return bytes(save({"w": values, **more}))


def put(stage: Stage, data: bytes, digest: str = "", node: str = "n0", **headers: str) -> httpx.Response:
    digest = digest or hashlib.sha256(data).hexdigest()
    return stage.send(node, "PUT", f"/jobs/{stage.job}/blobs/{digest}", content=data, headers=headers)


def leftovers(stage: Stage) -> list[Path]:
    """Files of uploads that are not bodies."""
    folder = stage.running.runner(stage.job).blobs.folder
    return [path for path in folder.rglob("*") if path.is_file() and path.parent != folder]


def long_header(stage: Stage) -> httpx.Response:
    return put(stage, (2**40).to_bytes(8, "little") + bytes(len(model()) - 8))


GOOD = model(0.5)
BAD: dict[str, tuple[Callable[[Stage], httpx.Response], int, str]] = {
    "NaN first": (lambda s: put(s, model(math.nan)), 422, "payload.not-finite"),
    "NaN last": (lambda s: put(s, model(math.nan, SIZE - 1)), 422, "payload.not-finite"),
    "infinity": (lambda s: put(s, model(math.inf, 5)), 422, "payload.not-finite"),
    "another digest": (lambda s: put(s, GOOD, "0" * 64), 422, "blob.digest"),
    "too short": (lambda s: put(s, GOOD[:-1]), 422, "payload.length"),
    "too long": (lambda s: put(s, GOOD + b"\0"), 422, "payload.length"),
    "another tensor": (lambda s: put(s, save({"v": np.zeros(SIZE, np.float32)})), 422, "payload.header"),
    "a tensor more": (lambda s: put(s, model(x=np.zeros(1, np.float32))), 422, "payload.length"),
    "a header of a terabyte": (long_header, 422, "payload.header"),
    "empty": (lambda s: put(s, b""), 422, "payload.short"),
    "too large": (lambda s: put(s, bytes(LIMIT + 1)), 413, "body.too-large"),
    "an announced total that is too large": (
        lambda s: put(s, b"x", **{"Content-Range": f"bytes 9-{10**12 - 1}/{10**12}"}),
        416,
        "upload.range",
    ),
    "a total of another model": (lambda s: put(s, b"x", **{"Content-Range": "bytes 9-9/10"}), 422, "payload.length"),
    "an offset that is not here": (
        lambda s: put(
            s, GOOD[9:], hashlib.sha256(GOOD).hexdigest(), **{"Content-Range": f"bytes 9-{len(GOOD) - 1}/{len(GOOD)}"}
        ),
        409,
        "blob.offset",
    ),
    "a range in the middle": (lambda s: put(s, b"xx", **{"Content-Range": "bytes 5-6/100"}), 416, "upload.range"),
    "a range in words": (lambda s: put(s, b"xx", **{"Content-Range": "bytes all"}), 416, "upload.range"),
    "a digest in capitals": (lambda s: put(s, GOOD, "A" * 64), 422, "request.invalid"),
    "a digest that is a path": (lambda s: put(s, GOOD, "..%2f..%2fetc%2fpasswd"), 405, "method.unknown"),
    "no task": (lambda s: put(s, GOOD, node="n2"), 409, "task.none"),
    "compressed": (lambda s: put(s, GOOD, **{"Content-Encoding": "zstd"}), 415, "body.encoding"),
    "an unknown job": (
        lambda s: s.send("n0", "PUT", f"/jobs/nope/blobs/{'0' * 64}", content=GOOD),
        404,
        "job.unknown",
    ),
    "no credential": (lambda s: put(s, GOOD, Authorization=""), 401, "auth.missing"),
    "an operator's": (lambda s: put(s, GOOD, Authorization="Bearer sho_test"), 403, "auth.forbidden"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_refused_upload_leaves_nothing(stage: Stage, name: str) -> None:
    send, status, code = BAD[name]
    before = stage.picture()
    problem(send(stage), status, code)
    assert stage.picture() == before
    assert not leftovers(stage)


def test_a_boolean_of_neither_0_nor_1_is_refused_whatever_the_model(stage: Stage) -> None:
    data = model(mask=np.ones(9, bool))[:-1] + b"\2"
    path = f"/api/v1/blobs/{hashlib.sha256(data).hexdigest()}"
    problem(stage.running.request("PUT", path, content=data), 422, "payload.boolean")
    assert stage.running.request("HEAD", path).status_code != 200


def test_a_header_is_parsed_beside_the_loop(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 MiB of header take a second or more, in which no other request would be answered."""
    parsed: list[bool] = []
    real = parse_header

    def parse(header: bytes) -> Layouts:
        parsed.append(asyncio._get_running_loop() is None)
        return real(header)

    monkeypatch.setattr(payload, "parse_header", parse)
    data = bytes(save({f"layer-{n}": np.zeros(2, np.float32) for n in range(3000)}))
    path = f"/api/v1/blobs/{hashlib.sha256(data).hexdigest()}"
    assert stage.running.request("PUT", path, content=data).status_code == 201
    assert parsed
    assert all(parsed)


def test_a_body_of_another_length_is_not_the_one_that_is_here(stage: Stage) -> None:
    data = model(0.75)
    assert put(stage, data).status_code == 201
    assert put(stage, data).status_code == 200
    problem(put(stage, data[:-1], hashlib.sha256(data).hexdigest()), 422, "payload.length")


def break_off(stage: Stage, data: bytes, sent: int) -> None:
    """Announce a body, send a part of it, and hang up when that has come; bytes in transit may be lost."""
    client = next(node.client for node in stage.nodes if node.node == "n0")
    place = stage.running.url.removeprefix("http://").split(":")
    digest = hashlib.sha256(data).hexdigest()
    with socket.create_connection((place[0], int(place[1])), PATIENCE_S) as raw:
        head = f"PUT /api/v1/jobs/{stage.job}/blobs/{digest} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        head += f"Content-Length: {len(data)}\r\n"
        raw.sendall(f"{head}Authorization: {client.headers['Authorization']}\r\n\r\n".encode() + data[:sent])
        partial = stage.running.runner(stage.job).blobs.folder / "partial" / "n0"
        until("it to come", lambda: sent in [path.stat().st_size for path in partial.glob(f"{digest}.*.tmp")])


def held(stage: Stage, data: bytes) -> int:
    """How many bytes of that body are kept."""
    answer = stage.send("n0", "HEAD", f"/jobs/{stage.job}/blobs/{hashlib.sha256(data).hexdigest()}")
    return int(answer.headers.get("upload-offset", -1)) if answer.status_code == 404 else len(data)


def wait_for(stage: Stage, data: bytes, count: int) -> None:
    until(f"{count} bytes to be kept", lambda: held(stage, data) == count)


def resume(stage: Stage, data: bytes, start: int, **more: Any) -> httpx.Response:
    whole = more.get("digest") or hashlib.sha256(data).hexdigest()
    return put(stage, data[start:], whole, **{"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"})


def test_an_upload_that_broke_off_goes_on(stage: Stage) -> None:
    data = model(0.125)
    break_off(stage, data, 100_000)
    wait_for(stage, data, 100_000)
    assert resume(stage, data, 100_000).status_code == 201
    assert held(stage, data) == len(data)
    assert not leftovers(stage)


def test_an_upload_may_go_on_before_its_end(stage: Stage) -> None:
    data = model(0.25)
    break_off(stage, data, 100_000)
    wait_for(stage, data, 100_000)
    problem(resume(stage, data, 100_001), 409, "blob.offset")
    assert held(stage, data) == 100_000
    assert resume(stage, data, 50_000).status_code == 201


@pytest.mark.parametrize("wrong", ["header", "number", "byte"])
def test_a_resumed_body_is_looked_at_as_a_whole(stage: Stage, wrong: str) -> None:
    data = {
        "header": model().replace(b'"w"', b'"v"', 1),
        "number": model(math.nan, SIZE - 1),
        "byte": model(2.0),
    }[wrong]
    good = model(2.0)
    if wrong == "header":  # the first bytes are checked, so only the kept part can be wrong
        folder = stage.running.runner(stage.job).blobs.folder / "partial" / "n0"
        folder.mkdir(exist_ok=True)
        (folder / hashlib.sha256(data).hexdigest()).write_bytes(data[:1000])
    else:
        begun = data if wrong == "number" else good
        break_off(stage, begun, 1000)
        wait_for(stage, begun, 1000)
    before = stage.picture()  # an upload takes the place of what its node has left here
    if wrong == "byte":
        altered = good[:-1] + b"\x01"
        digest = hashlib.sha256(good).hexdigest()
        answer = put(stage, altered[1000:], digest, **{"Content-Range": f"bytes 1000-{len(good) - 1}/{len(good)}"})
        problem(answer, 422, "blob.digest")
    else:
        problem(resume(stage, data, 1000), 422, "payload.layout" if wrong == "header" else "payload.not-finite")
    assert stage.picture() == before
    assert not leftovers(stage)


def test_the_same_body_from_two_connections_at_once(stage: Stage) -> None:
    data, answers = model(3.0), []
    threads = [threading.Thread(target=lambda: answers.append(put(stage, data).status_code)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(answers) <= {200, 201}
    assert len(answers) == 8
    assert not leftovers(stage)


def same(one: Any, other: Any) -> Any:
    """Nothing is being written any more, if it is the same twice."""
    return one if one == other else None


def test_an_evaluation_carries_no_body(coordinator: Inside) -> None:
    made = set_up(coordinator, "small")
    try:
        coordinator.post("/jobs/small/stop", {"when": "round"})
        for name in ("n0", "n1"):
            node = next(one for one in made.nodes if one.node == name)
            assert node.report("small", made.tasks[name]).counted
        made.tasks["n0"], _ = task_of(made.nodes[0], "small")
        assert made.tasks["n0"].kind == "evaluate"
        until("the version", lambda: len(coordinator.rows("SELECT 1 FROM versions")) == 2)
        before = until("all that was reported to be written", lambda: same(made.picture(), made.picture()))
        problem(put(made, save({"w": initial(10)})), 422, "payload.unwanted")
        problem(made.report(initial(10), weight=0.0), 422, "payload.unwanted")
        assert made.picture() == before
        ack = made.nodes[0].report("small", made.tasks["n0"])
        assert isinstance(ack, Ack)
        assert ack.counted
    finally:
        made.close()
