"""What every store of blobs can do, and what bodies in it can: the same whatever the store is."""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.blobs.places import open_store
from coordinator.blobs.store import BlobStore
from coordinator.settings import Settings
from shoal.core.errors import InvalidPayload, StorageFailed
from shoal.core.message import Ref
from shoal.runtime.store import SHARED_S, FileBodies
from tests.coordinator.history import final, predicted
from tests.coordinator.node import Node
from tests.coordinator.server import inside, until

Swarm = Callable[..., list[Node]]

DATA = secrets.token_bytes(3 * 2**20 + 17)
REF = Ref(hashlib.sha256(DATA).hexdigest(), len(DATA))
KEY = f"main/{REF.digest}"


@pytest.fixture(params=["folder", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store."""
    return {"folder": f"file://{tmp_path}/shared", "memory": f"memory://{tmp_path}"}[request.param]


@pytest.fixture
def store(url: str) -> BlobStore:
    return opened(url)


def opened(url: str) -> BlobStore:
    return open_store(Settings(blobs=url))


def got(store: BlobStore, start: int = 0, stop: int | None = None) -> bytes:
    return b"".join(store.get(KEY, start, stop))


def test_a_blob_is_put_once_and_got_in_parts(store: BlobStore) -> None:
    assert store.size(KEY) is None
    assert store.put(KEY, DATA)
    assert store.size(KEY) == len(DATA)
    assert got(store) == DATA
    assert got(store, 2**20 + 1) == DATA[2**20 + 1 :]
    assert got(store, 5, 12) == DATA[5:12]
    assert max(map(len, store.get(KEY))) <= 2**20, "never more than a piece in memory"
    assert not store.put(KEY, b"other bytes")
    assert got(store) == DATA


def test_what_is_there_is_listed_with_its_age(store: BlobStore) -> None:
    for key in (KEY, f"other/{REF.digest}"):
        store.put(key, DATA)
    [found] = store.list("main")
    assert (found.key, found.nbytes) == (KEY, len(DATA))
    assert abs(found.since - time.time()) < 60
    assert not list(store.list("mai"))


def test_what_is_deleted_is_gone(store: BlobStore) -> None:
    store.put(KEY, DATA)
    store.delete(KEY)
    store.delete(KEY)
    assert store.size(KEY) is None
    assert not list(store.list("main"))
    with pytest.raises(StorageFailed) as caught:
        got(store)
    assert caught.value.code == "storage.missing"


def test_a_check_leaves_nothing(store: BlobStore) -> None:
    store.check()
    assert not list(store.list(".check"))


def test_an_address_that_names_no_store() -> None:
    with pytest.raises(StorageFailed, match="ftp://a/b' names no store") as caught:
        opened("ftp://a/b")
    assert "file:///path" in caught.value.hint


# The bodies of a job


@pytest.fixture
def bodies(store: BlobStore, tmp_path: Path) -> FileBodies:
    return store.bodies("main", tmp_path / "near", lambda _: None)


def sent(bodies: FileBodies, data: bytes = DATA, ref: Ref = REF) -> None:
    with bodies.incoming("a", ref) as incoming:
        incoming.write(data)
        incoming.finish()


@pytest.mark.parametrize("way", ["incoming", "keep"])
def test_what_came_is_in_the_store_and_read_here(bodies: FileBodies, store: BlobStore, way: str) -> None:
    sent(bodies) if way == "incoming" else bodies.keep(REF, DATA)
    assert got(store) == DATA
    assert bodies.open(REF)[:] == DATA
    assert bodies.size(REF.digest) == len(DATA)
    assert bodies.digests() == [REF.digest]


def test_bodies_are_read_by_who_has_no_copy(bodies: FileBodies, store: BlobStore, tmp_path: Path) -> None:
    sent(bodies)
    elsewhere = store.bodies("main", tmp_path / "elsewhere", lambda _: None)
    assert elsewhere.has(REF.digest)
    assert elsewhere.check(REF)
    assert elsewhere.open(REF)[7:9] == DATA[7:9]


def test_what_is_wrong_never_comes_into_the_store(bodies: FileBodies, store: BlobStore) -> None:
    with pytest.raises(InvalidPayload):
        sent(bodies, b"x" * len(DATA))
    assert store.size(KEY) is None


def test_a_body_is_deleted_and_comes_again(bodies: FileBodies, store: BlobStore) -> None:
    sent(bodies)
    bodies.delete(REF.digest)
    assert not bodies.has(REF.digest)
    assert bodies.digests() == []
    sent(bodies)
    bodies.reap()
    assert got(store) == DATA, "it was put again after it had been deleted"
    bodies.delete(REF.digest)
    bodies.reap()
    assert store.size(KEY) is None


def test_old_bodies_are_found(bodies: FileBodies) -> None:
    sent(bodies)
    assert bodies.old(60.0) == set()
    assert bodies.old(-1.0) == {REF.digest}


def test_a_body_that_is_put_while_it_is_deleted_is_there_in_the_end(tmp_path: Path) -> None:
    """The store is slow to delete; meanwhile the same bytes come again."""
    store = opened(f"memory://{tmp_path}")
    bodies = store.bodies("main", tmp_path / "near", lambda _: None)
    sent(bodies)
    bodies.delete(REF.digest)
    begun, go_on, delete = threading.Event(), threading.Event(), store.delete

    def slowly(key: str) -> None:
        begun.set()
        go_on.wait(10)
        delete(key)

    store.delete = slowly  # type: ignore[method-assign]
    reaper = threading.Thread(target=bodies.reap)
    reaper.start()
    begun.wait(10)
    assert bodies.size(REF.digest) is None
    sender = threading.Thread(target=sent, args=(bodies,))
    sender.start()
    sender.join(0.1)
    assert sender.is_alive(), "it waits until the deletion is over"
    go_on.set()
    reaper.join(10)
    sender.join(10)
    assert got(store) == DATA


def test_what_another_coordinator_deleted_is_forgotten(tmp_path: Path) -> None:
    store = opened(f"memory://{tmp_path}")
    bodies = store.bodies("main", tmp_path / "near", lambda _: None)
    sent(bodies)
    store.delete(KEY)
    bodies.old(-1.0)
    assert not bodies.has(REF.digest)


def test_a_damaged_blob_is_named(tmp_path: Path) -> None:
    store = opened(f"memory://{tmp_path}")
    store.put(KEY, b"x" * len(DATA))
    bodies = store.bodies("main", tmp_path / "near", lambda _: None)
    with pytest.raises(StorageFailed, match="is damaged in memory://"):
        bodies.open(REF)
    assert not list((tmp_path / "near").glob("**/*.tmp"))


def test_in_a_shared_folder_a_start_leaves_the_work_of_others(tmp_path: Path) -> None:
    bodies = opened(str(tmp_path / "shared")).bodies("main", tmp_path / "near", lambda _: None)
    theirs, forgotten = bodies.temporary(), bodies.temporary()
    for path in (theirs, forgotten):
        path.write_bytes(b"half")
    os.utime(forgotten, (1, time.time() - SHARED_S - 60))
    bodies.sweep()
    assert theirs.exists()
    assert not forgotten.exists()


# A coordinator over it


@pytest.mark.parametrize("size", [10, 66_000])
def test_a_job_runs_over_it(url: str, tmp_path: Path, swarm: Swarm, size: int) -> None:
    with inside(tmp_path / "data", blobs=url, models_kept=2) as running:
        running.begin("a", nodes=2, rounds=4)
        for node in swarm(running, 2, {"a": size}):
            node.finish()
        until("the job to have ended", lambda: running.job("a")["ended_at"])
        assert final(running, "a") == predicted(size, 4, ["n0", "n1"])
        best = running.job("a")["best"]["version"]
        made = [row[0] for row in running.rows("SELECT digest FROM versions WHERE job = 'a' ORDER BY number")]
        kept = {*made[-2:], made[best]}
        until("all else to go", lambda: {one.key.partition("/")[2] for one in opened(url).list("a")} == kept)
        for number in (4, 3):
            answer = running.request("GET", f"/api/v1/jobs/a/models/{number}")
            assert hashlib.sha256(answer.content).hexdigest() == made[number]
    assert not (tmp_path / "data" / "bodies").exists()
