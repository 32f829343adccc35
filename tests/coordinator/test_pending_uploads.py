"""One node cannot fill the disk: one blob for its task, and a limit of bytes in all jobs."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from stat import S_ISREG
from urllib.parse import urlsplit

import numpy as np
import pytest
from safetensors.numpy import save

from shoal.core.errors import Refused, StorageFailed
from shoal.core.protocol.message import BlobRef
from shoal.runtime import partial_blobs
from shoal.runtime.blob_files import FileBlobs
from shoal_coordinator.updates.pending_uploads import TARGETS_MAX, NodeByteLimit, PendingUploads
from tests.support.coordinator import Inside, inside
from tests.support.scenario import Stage, problem, set_free_bytes, set_up
from tests.support.waiting import PATIENCE_S, until

SIZE = 70_000
COUNT = 12


@pytest.fixture
def stage(coordinator: Inside) -> Iterator[Stage]:
    made = set_up(coordinator, size=SIZE)
    yield made
    made.close()


def model(value: float) -> bytes:
    return bytes(save({"w": np.full(SIZE, value, np.float32)}))


def path_of(data: bytes) -> str:
    return f"/jobs/main/blobs/{hashlib.sha256(data).hexdigest()}"


def used(stage: Stage) -> int:
    """Bytes of all files of the job, but for those of its model."""
    runner = stage.running.runner("main")
    keep = runner.blob_use.digests()
    return sum(sizes(path for path in runner.blobs.folder.rglob("*") if path.name not in keep))


def sizes(paths: Iterable[Path]) -> list[int]:
    """Return the lengths of the files; one that is renamed or deleted meanwhile is left out."""
    found = []
    for path in paths:
        with suppress(FileNotFoundError):
            about = path.stat()
            found += [about.st_size] if S_ISREG(about.st_mode) else []
    return found


def test_the_next_blob_takes_the_place_of_the_last(stage: Stage) -> None:
    blobs = [model(float(i)) for i in range(COUNT)]
    for data in blobs:
        assert stage.send("n0", "PUT", path_of(data), content=data).status_code == 201
        assert used(stage) == len(data)
    assert stage.send("n0", "HEAD", path_of(blobs[-1])).status_code == 200
    assert stage.send("n0", "HEAD", path_of(blobs[0])).status_code == 404


def test_another_nodes_blob_stays(stage: Stage) -> None:
    """Even if it is the same: two nodes with equal data have equal updates."""
    same, other = model(1.0), model(2.0)
    for node in ("n0", "n1"):
        assert stage.send(node, "PUT", path_of(same), content=same).status_code in (200, 201)
    assert stage.send("n0", "PUT", path_of(other), content=other).status_code == 201
    assert used(stage) == 2 * len(same)
    for data, node in ((same, "n1"), (other, "n0")):
        assert stage.send(node, "POST", "/jobs/main/reports", content=stage.frame(data, node)[0]).status_code == 200


def test_what_a_report_has_named_stays(stage: Stage) -> None:
    """The next blob is of the next task."""
    first, second = model(1.0), model(2.0)
    for node in ("n0", "n1"):
        assert stage.send(node, "PUT", path_of(first), content=first).status_code in (200, 201)
    head, _ = stage.frame(first, "n0")
    assert stage.send("n0", "POST", "/jobs/main/reports", content=head).status_code == 200
    stage.send("n1", "PUT", path_of(second), content=second)
    needed = stage.running.runner("main").blob_use.digests()
    assert hashlib.sha256(first).hexdigest() in needed
    assert stage.running.runner("main").blobs.has(hashlib.sha256(first).hexdigest())


def begin(held: ExitStack, stage: Stage, data: bytes, sent: int) -> socket.socket:
    """Announce a blob of n0's and send a part of it."""
    client, place = stage.nodes[0].client, urlsplit(stage.running.url)
    raw = held.enter_context(socket.create_connection((place.hostname or "", place.port or 0), PATIENCE_S))
    head = f"PUT /api/v1{path_of(data)} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n"
    raw.sendall(f"{head}Authorization: {client.headers['Authorization']}\r\n\r\n".encode() + data[:sent])
    folder, digest = stage.running.runner("main").blobs.folder / "partial" / "n0", path_of(data).rpartition("/")[2]
    until("it to come", lambda: sent in sizes(folder.glob(f"{digest}.*.tmp")))
    return raw


def test_blobs_that_are_coming_in_take_each_others_place(stage: Stage) -> None:
    with ExitStack() as held:
        raws = [begin(held, stage, model(float(i)), 30_000) for i in range(COUNT)]
        until("only one to be kept", lambda: used(stage) == 30_000)
        raws[0].sendall(model(0.0)[30_000:])
        assert b" 409 " in raws[0].recv(1 << 16)
        for raw in raws:
            raw.close()
        until("the rest to go", lambda: used(stage) <= 30_000)


def test_blobs_that_broke_off_take_each_others_place(stage: Stage) -> None:
    folder = stage.running.runner("main").blobs.folder / "partial" / "n0"
    for i in range(COUNT):
        data = model(float(i))
        with ExitStack() as held:
            begin(held, stage, data, 30_000)
        until("it to be kept", lambda data=data: (folder / path_of(data).rpartition("/")[2]).exists())
        until("only one to be kept", lambda: used(stage) == 30_000)


def test_a_connection_that_hangs_does_not_hold_up_the_next(stage: Stage) -> None:
    """A node whose connection was cut off silently sends the same blob again, and both are answered in the end."""
    data = model(5.0)
    with ExitStack() as held:
        hangs = begin(held, stage, data, 30_000)
        assert stage.send("n0", "PUT", path_of(data), content=data).status_code == 201
        hangs.sendall(data[30_000:])
        assert b" 201 " in hangs.recv(1 << 16)
    assert used(stage) == len(data)


def test_many_at_once(stage: Stage) -> None:
    answers: list[int] = []

    def send(value: int) -> None:
        data = model(float(value % 3))
        answers.append(stage.send("n0", "PUT", path_of(data), content=data).status_code)

    threads = [threading.Thread(target=send, args=(value,)) for value in range(COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(answers) <= {200, 201, 409}
    assert 201 in answers
    assert used(stage) <= len(model(0.0))
    last = model(7.0)
    assert stage.send("n0", "PUT", path_of(last), content=last).status_code == 201
    assert stage.send("n0", "POST", "/jobs/main/reports", content=stage.frame(last)[0]).status_code == 200


def test_a_node_has_so_many_bytes_in_all_jobs(tmp_path: Path) -> None:
    with inside(tmp_path / "data", pending_uploads_bytes_max=400_000) as running:
        stage = set_up(running, size=SIZE)
        running.begin("second", nodes=1)
        stage.nodes[0].ask("GET", "/work", params={"wait_s": 1, "job": "second"})
        first, second = model(1.0), model(2.0)
        assert stage.send("n0", "PUT", path_of(first), content=first).status_code == 201
        there = path_of(second).replace("main", "second")
        problem(stage.send("n0", "PUT", there, content=second), 503, "storage.node-full")
        assert stage.send("n0", "PUT", path_of(second), content=second).status_code == 201, "in place of the first"
        head, _ = stage.frame(second, "n0")
        assert stage.send("n0", "POST", "/jobs/main/reports", content=head).status_code == 200
        assert stage.send("n0", "PUT", there, content=second).status_code == 201
        stage.close()


def test_bytes_are_given_back() -> None:
    nodes = NodeByteLimit(100)
    nodes.reserve("a", 80)
    nodes.reserve("a", 80, replaced=80)
    with pytest.raises(StorageFailed):
        nodes.reserve("a", 1)
    nodes.reserve("b", 1000), nodes.release("a", 80), nodes.release("a", 80)
    nodes.reserve("a", 1000)
    with pytest.raises(StorageFailed):
        nodes.reserve("b", 1)


def test_addresses_of_a_store_are_few(tmp_path: Path) -> None:
    """An address that was given is good for an hour, so it counts although another has taken its place."""
    unreported = PendingUploads(FileBlobs(tmp_path), NodeByteLimit(1), lambda _: None)
    assert unreported.add_address("a", (1, 1), "0") == []
    for i in range(1, TARGETS_MAX):
        assert unreported.add_address("a", (1, 1), str(i)) == [str(j) for j in range(i)]
    assert "0" not in unreported.add_address("a", (1, 1), "0")
    with pytest.raises(Refused):
        unreported.add_address("a", (1, 1), "other")
    assert unreported.add_address("b", (1, 1), "other") == unreported.add_address("a", (1, 2), "other") == []


# Readiness


def test_readyz_says_what_uploads_say(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for nothing more than half an update: the next upload is refused, so it is not ready."""
    data = model(1.0)
    set_free_bytes(monkeypatch, len(data) // 2)
    said = problem(stage.running.request("GET", "/readyz"), 503, "not-ready")["detail"]
    assert said.startswith("main: no update is accepted: ")
    problem(stage.send("n0", "PUT", path_of(data), content=data), 507, "storage.full")
    set_free_bytes(monkeypatch, 2**40)
    assert stage.running.request("GET", "/readyz").status_code == 200


def test_readyz_says_what_the_disk_says(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota may be spent while the disk as a whole has room."""
    data = model(1.0)

    def full(descriptor: int, piece: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(partial_blobs, "write_all", full)
    problem(stage.send("n0", "PUT", path_of(data), content=data), 507, "storage.full")
    assert "no space left" in problem(stage.running.request("GET", "/readyz"), 503, "not-ready")["detail"]
    monkeypatch.undo()
    assert stage.send("n0", "PUT", path_of(data), content=data).status_code == 201
    assert stage.running.request("GET", "/readyz").status_code == 200


def test_who_is_superseded_waits_for_the_blob(tmp_path: Path) -> None:
    async def scene() -> None:
        blobs = FileBlobs(tmp_path)
        unreported = PendingUploads(blobs, NodeByteLimit(1000), blobs.delete)
        ref = BlobRef("0" * 64, 1)
        first, second = await unreported.start("a", ref), await unreported.start("a", ref)
        assert first is not None
        assert second is not None
        assert first.is_superseded
        unreported.finish(first, kept=True)
        waiting = asyncio.create_task(unreported.wait(first))
        blobs.path(ref.digest).write_bytes(b"x")
        unreported.finish(second, kept=True)
        assert await waiting

    asyncio.run(scene())
