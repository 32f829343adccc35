"""Requirements for every blob store, and for blobs in it."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shoal.core.errors import InvalidPayload, StorageFailed
from shoal.core.protocol.message import BlobRef
from shoal.runtime.blob_files import SHARED_S, FileBlobs
from shoal_coordinator.composition.start_store import link_blob
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage.blobs.places import open_store
from shoal_coordinator.storage.blobs.store import BlobStore
from tests.support.coordinator import inside
from tests.support.history import final, predicted
from tests.support.node import Node, body, initial
from tests.support.s3 import KEY_ID, S3, SECRET
from tests.support.waiting import PATIENCE_S, pause, until

Swarm = Callable[..., list[Node]]

DATA = secrets.token_bytes(2**20 + 17)
REF = BlobRef(hashlib.sha256(DATA).hexdigest(), len(DATA))
KEYS: dict[str, Any] = {"blobs_key_id": KEY_ID, "blobs_secret": SECRET}
KEY = f"main/{REF.digest}"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    store = S3()
    yield store
    store.close()


@pytest.fixture
def bucket(s3: S3) -> Iterator[str]:
    """The address of an empty store that speaks S3."""
    yield s3.bucket(f"b{secrets.token_hex(6)}")
    s3.feel("")


@pytest.fixture(params=["folder", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store."""
    if request.param == "s3":
        return str(request.getfixturevalue("bucket"))
    return {"folder": f"file://{tmp_path}/shared", "memory": f"memory://{tmp_path}"}[request.param]


@pytest.fixture
def store(url: str) -> BlobStore:
    return opened(url)


def opened(url: str) -> BlobStore:
    return open_store(Settings(blobs=url, **KEYS))


def got(store: BlobStore) -> bytes:
    return b"".join(store.get(KEY))


@pytest.mark.parametrize("nbytes", [2**20 + 17, 9 * 2**20 + 17])
def test_a_blob_is_put_once_and_got_in_parts(store: BlobStore, nbytes: int) -> None:
    data = secrets.token_bytes(nbytes)
    key = f"main/{hashlib.sha256(data).hexdigest()}"
    assert store.size(key) is None
    assert store.put(key, data)
    assert store.size(key) == nbytes
    assert b"".join(store.get(key)) == data
    assert b"".join(store.get(key, 2**20 + 1)) == data[2**20 + 1 :]
    assert b"".join(store.get(key, 5, 12)) == data[5:12]
    assert max(map(len, store.get(key))) <= 2**20, "never more than a piece in memory"
    assert not store.put(key, b"other bytes")
    assert b"".join(store.get(key)) == data


def test_what_is_there_is_listed_with_its_age(store: BlobStore) -> None:
    for key in (KEY, f"other/{REF.digest}"):
        store.put(key, DATA)
    [found] = store.list("main")
    assert (found.key, found.nbytes) == (KEY, len(DATA))
    now = time.time()
    assert found.since == pytest.approx(now, abs=3600.0), "in seconds since 1970"
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
    with pytest.raises(StorageFailed, match="ftp://… names no store") as caught:
        opened("ftp://a/b")
    assert "file:///path" in caught.value.hint


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("s3://", "no bucket"),
        ("s3://b?endpiont=http://x", "unknown: endpiont"),
        ("s3://b?presign=maybe", "presign"),
    ],
)
def test_an_address_of_s3_that_cannot_be_read(url: str, fault: str) -> None:
    with pytest.raises(StorageFailed, match=fault) as caught:
        opened(url)
    assert "s3://BUCKET/PREFIX?endpoint=" in caught.value.hint


@pytest.mark.parametrize(
    ("mood", "status", "methods", "code", "hint"),
    [
        ("SlowDown", 503, "", "unreachable", "is up and can be reached"),
        ("AccessDenied", 403, "", "denied", "allowed to get, put, delete and list"),
        ("QuotaExceeded", 403, "PUT", "full", "raise its quota"),
        ("InsufficientStorage", 507, "PUT", "full", "raise its quota"),
        ("NoSuchBucket", 404, "PUT", "no-bucket", "make it"),
    ],
)
def test_what_ails_a_store_is_said_with_the_remedy(
    s3: S3, bucket: str, mood: str, status: int, methods: str, code: str, hint: str
) -> None:
    store = opened(bucket)
    s3.feel(mood, status, methods.split())
    with pytest.raises(StorageFailed, match=r"^(s3://b\w+/some/where|there is no bucket)") as caught:
        store.check()
    assert caught.value.code == f"storage.{code}"
    assert hint in caught.value.hint
    assert "Debug" not in caught.value.message
    s3.feel("")
    store.check()


def test_a_coordinator_does_not_start_over_a_store_that_denies_it(s3: S3, bucket: str, tmp_path: Path) -> None:
    s3.feel("AccessDenied", 403)
    with pytest.raises(StorageFailed, match="denies access"), inside(tmp_path / "data", blobs=bucket, **KEYS):
        pass


def test_targets_of_a_store_that_cannot_give_them(tmp_path: Path) -> None:
    store = opened(f"memory://{tmp_path}")
    assert not store.direct
    assert store.presign_download(KEY, 60) is None
    assert store.presign_upload(KEY, 1, REF.digest, 60) is None


def test_a_presign_download_is_followed_whole_and_in_part(bucket: str) -> None:
    store = opened(bucket)
    store.put(KEY, DATA)
    target = store.presign_download(KEY, 60)
    assert target is not None
    assert httpx.request(target.method, target.url, headers=target.headers).content == DATA
    part = httpx.get(target.url, headers={"Range": "bytes=5-9"})
    assert (part.status_code, part.content) == (206, DATA[5:10])


def test_an_presign_upload_takes_that_blob_alone(s3: S3, bucket: str) -> None:
    store = opened(bucket)
    target = store.presign_upload(KEY, len(DATA), REF.digest, 60)
    assert target is not None
    other = DATA[:-1] + bytes([DATA[-1] ^ 1])
    assert httpx.put(target.url, headers=target.headers, content=other).status_code == 400
    assert store.size(KEY) is None
    assert httpx.put(target.url, headers=target.headers, content=DATA).status_code == 200
    assert got(store) == DATA
    s3.late_s = 61
    try:
        assert httpx.put(target.url, headers=target.headers, content=DATA).status_code == 403
    finally:
        s3.late_s = 0


def test_the_public_address_is_the_one_that_nodes_are_given(s3: S3, bucket: str) -> None:
    store = opened(f"{bucket}&public=https://blobs.example.org")
    for target in (store.presign_download(KEY, 60), store.presign_upload(KEY, 1, REF.digest, 60)):
        assert target is not None
        assert target.url.startswith("https://blobs.example.org/b")
    assert not opened(f"{bucket}&presign=no").direct


# The blobs of a job


@pytest.fixture
def blobs(store: BlobStore, tmp_path: Path) -> FileBlobs:
    return store.blobs_of("main", tmp_path / "near", lambda _: None)


def sent(blobs: FileBlobs, data: bytes = DATA, ref: BlobRef = REF) -> None:
    with blobs.partials.incoming("a", ref) as incoming:
        incoming.write(data)
        incoming.finish()


@pytest.mark.parametrize("way", ["incoming", "keep"])
def test_what_came_is_in_the_store_and_read_here(blobs: FileBlobs, store: BlobStore, way: str) -> None:
    sent(blobs) if way == "incoming" else blobs.keep(REF, DATA)
    assert got(store) == DATA
    assert blobs.open(REF)[:] == DATA
    assert blobs.size(REF.digest) == len(DATA)
    assert blobs.digests() == [REF.digest]


def test_blobs_are_read_by_who_has_no_copy(blobs: FileBlobs, store: BlobStore, tmp_path: Path) -> None:
    sent(blobs)
    elsewhere = store.blobs_of("main", tmp_path / "elsewhere", lambda _: None)
    assert elsewhere.has(REF.digest)
    assert elsewhere.check(REF)
    assert elsewhere.open(REF)[7:9] == DATA[7:9]


def test_what_is_wrong_never_comes_into_the_store(blobs: FileBlobs, store: BlobStore) -> None:
    with pytest.raises(InvalidPayload):
        sent(blobs, b"x" * len(DATA))
    assert store.size(KEY) is None


def test_a_blob_is_deleted_and_comes_again(blobs: FileBlobs, store: BlobStore) -> None:
    sent(blobs)
    blobs.delete(REF.digest)
    assert not blobs.has(REF.digest)
    assert blobs.digests() == []
    sent(blobs)
    blobs.reap()
    assert got(store) == DATA, "it was put again after it had been deleted"
    blobs.delete(REF.digest)
    blobs.reap()
    assert store.size(KEY) is None


@pytest.mark.parametrize("links", [True, False])
def test_a_blob_is_shared_with_another_job(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    data = body(initial(1000))
    ref = BlobRef(hashlib.sha256(data).hexdigest(), len(data))
    starts, mine = (store.blobs_of(job, tmp_path / "near" / job, lambda _: None) for job in ("starts", "main"))
    with pytest.raises(StorageFailed, match="missing"):
        link_blob(mine, starts, ref)
    sent(starts, data, ref)

    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "not on one disk")

    monkeypatch.setattr(*((FileBlobs, "put") if links else (os, "link")), refuse)
    link_blob(mine, starts, ref)
    starts.delete(ref.digest)
    starts.reap()
    assert mine.open(ref)[:] == data
    assert store.size(f"main/{ref.digest}") == len(data)
    assert list((mine.folder / "tmp").iterdir()) == []


def test_old_blobs_are_found(blobs: FileBlobs) -> None:
    sent(blobs)
    assert blobs.old(60.0) == set()
    assert blobs.old(-1.0) == {REF.digest}


def test_a_blob_that_is_put_while_it_is_deleted_is_there_in_the_end(tmp_path: Path) -> None:
    """The store is slow to delete; meanwhile the same bytes come again."""
    store = opened(f"memory://{tmp_path}")
    blobs = store.blobs_of("main", tmp_path / "near", lambda _: None)
    sent(blobs)
    blobs.delete(REF.digest)
    begun, go_on, delete = threading.Event(), threading.Event(), store.delete

    def slowly(key: str) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        delete(key)

    store.delete = slowly  # type: ignore[method-assign]
    reaper = threading.Thread(target=blobs.reap)
    reaper.start()
    assert begun.wait(PATIENCE_S)
    assert blobs.size(REF.digest) is None
    sender = threading.Thread(target=sent, args=(blobs,))
    sender.start()
    pause(0.1)
    assert sender.is_alive(), "it waits until the deletion is over"
    go_on.set()
    reaper.join(PATIENCE_S)
    sender.join(PATIENCE_S)
    assert got(store) == DATA


def test_what_another_coordinator_deleted_is_forgotten(tmp_path: Path) -> None:
    store = opened(f"memory://{tmp_path}")
    blobs = store.blobs_of("main", tmp_path / "near", lambda _: None)
    sent(blobs)
    store.delete(KEY)
    blobs.old(-1.0)
    assert not blobs.has(REF.digest)


def near(tmp_path: Path, used_s: dict[str, float], blob_cache_bytes_max: int) -> dict[str, tuple[FileBlobs, BlobRef]]:
    """Make a job for each name, with a copy of 1000 bytes that was used that many seconds ago."""
    store = open_store(Settings(blobs=f"memory://{tmp_path}", blob_cache_bytes_max=blob_cache_bytes_max))
    found = {}
    for job, ago_s in used_s.items():
        data = secrets.token_bytes(1000)
        blobs = store.blobs_of(job, tmp_path / job, lambda _: None)
        ref = BlobRef(hashlib.sha256(data).hexdigest(), len(data))
        blobs.keep(ref, data)
        os.utime(blobs.path(ref.digest), (time.time() - ago_s,) * 2)
        found[job] = blobs, ref
    return found


def copied(jobs: dict[str, tuple[FileBlobs, BlobRef]]) -> set[str]:
    return {job for job, (blobs, ref) in jobs.items() if blobs.path(ref.digest).exists()}


def test_copies_go_that_were_not_used_for_longest(tmp_path: Path) -> None:
    jobs = near(tmp_path, {"a": 4000, "d": 1000, "b": 3000, "c": 2000}, 2000)
    blobs, ref = jobs["a"]
    blobs.open(ref)
    jobs["d"][0].reap()
    assert copied(jobs) == {"a", "d"}
    assert all(one.has(held.digest) for one, held in jobs.values())
    blobs, ref = jobs["b"]
    assert hashlib.sha256(blobs.open(ref)[0:1000]).hexdigest() == ref.digest, "read again from the store"
    assert copied(jobs) == {"a", "b", "d"}, "until the next look"
    blobs.reap()
    assert copied(jobs) == {"a", "b", "d"}, "which is not at once"


def test_a_copy_that_was_used_just_now_stays(tmp_path: Path) -> None:
    """A request may be about to open it."""
    jobs = near(tmp_path, {"a": 1000, "b": 1, "c": 0}, 0)
    jobs["a"][0].reap()
    assert copied(jobs) == {"b", "c"}


def test_a_job_that_was_anothers_meanwhile_is_read_anew(tmp_path: Path) -> None:
    """Its copies are thrown away when it comes back, and the clearing of other jobs does not fail on that."""
    store = open_store(Settings(blobs=f"memory://{tmp_path}", blob_cache_bytes_max=0))
    first, other = (store.blobs_of(job, tmp_path / job, lambda _: None) for job in ("a", "b"))
    for blobs in (first, other):
        sent(blobs)
    other.delete(REF.digest)
    shutil.rmtree(tmp_path / "a")
    other.reap()
    assert not list(store.list("b")), "what was deleted is gone"
    again = store.blobs_of("a", tmp_path / "a", lambda _: None)
    assert again.open(REF)[:] == DATA


def test_a_damaged_blob_is_named(tmp_path: Path) -> None:
    store = opened(f"memory://{tmp_path}")
    store.put(KEY, b"x" * len(DATA))
    blobs = store.blobs_of("main", tmp_path / "near", lambda _: None)
    with pytest.raises(StorageFailed, match="is damaged in memory://"):
        blobs.open(REF)
    assert not list((tmp_path / "near").glob("**/*.tmp"))


def test_in_a_shared_folder_a_start_leaves_the_work_of_others(tmp_path: Path) -> None:
    blobs = opened(str(tmp_path / "shared")).blobs_of("main", tmp_path / "near", lambda _: None)
    theirs, forgotten = blobs.temporary(), blobs.temporary()
    for path in (theirs, forgotten):
        path.write_bytes(b"half")
    os.utime(forgotten, (1, time.time() - SHARED_S - 60))
    blobs.sweep()
    assert theirs.exists()
    assert not forgotten.exists()


# A coordinator over it


@pytest.mark.parametrize("size", [10, 66_000])
def test_a_job_runs_over_it(url: str, tmp_path: Path, swarm: Swarm, size: int) -> None:
    with inside(tmp_path / "data", blobs=url, **KEYS, models_kept=2) as running:
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
    assert not (tmp_path / "data" / "blobs").exists()
