"""Bodies in files: whole or not there, whatever happens; and never wholly in memory."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import threading
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.core.errors import InvalidPayload, Refused, StorageFailed
from shoal.core.model.tree import Layout, Tree, zeros
from shoal.core.protocol.message import BlobRef
from shoal.runtime import durable_files
from shoal.runtime.blob_files import FileBlob, FileBlobs
from shoal.runtime.durable_files import STEPS, FileSource, digest_of, free_bytes, make_folder, write_file
from shoal.wire.payload import PIECE_BYTES, payload_pieces

DATA = bytes(range(256)) * 5000  # more than one piece
REF = BlobRef(digest_of([DATA]), len(DATA))


@pytest.fixture
def blobs(tmp_path: Path) -> FileBlobs:
    return FileBlobs(tmp_path / "blobs")


def slots(count: int = 10) -> dict[str, Tree | float]:
    return {"model": Tree.of({"w": np.arange(count, dtype=np.float32), "n": np.array(7)}), "step": 3.0}


# Content


def test_what_was_put_is_got(blobs: FileBlobs) -> None:
    ref = blobs.put(slots(300_000))
    found = blobs.get(ref)
    assert found["step"] == 3.0
    model = found["model"]
    assert isinstance(model, Tree)
    assert np.array_equal(model["w"], np.arange(300_000, dtype=np.float32))
    data = blobs.path(ref.digest).read_bytes()
    assert data == b"".join(bytes(piece) for piece in payload_pieces(slots(300_000)))
    assert ref == BlobRef(digest_of([data]), len(data))


def test_a_blob_of_another_disk_is_copied(blobs: FileBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, rename = FileBlobs(tmp_path / "there"), Path.rename
    ref = there.put(slots())

    def refuse(path: Path, target: Path) -> Path:
        if path.parent == there.folder:
            raise OSError(errno.EXDEV, "cross-device link")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    assert blobs.take(FileBlob(there.path(ref.digest), ref)) == ref
    assert blobs.check(ref)
    assert not there.has(ref.digest)


def test_the_same_content_is_kept_once(blobs: FileBlobs) -> None:
    assert blobs.put(slots()) == blobs.put(slots())
    assert len(blobs.digests()) == 1
    assert list((blobs.folder / "tmp").iterdir()) == []


def test_a_blob_can_be_read_after_it_was_deleted(blobs: FileBlobs) -> None:
    ref = blobs.put(slots())
    found = blobs.get(ref)
    blobs.delete(ref.digest)
    assert not blobs.has(ref.digest)
    assert isinstance(found["model"], Tree)
    assert found["model"]["w"][9] == 9.0


def test_a_missing_blob_is_named(blobs: FileBlobs) -> None:
    with pytest.raises(StorageFailed, match="is missing") as missing:
        blobs.get(REF)
    assert missing.value.code == "storage.missing"


def test_a_blob_of_another_length_is_damaged(blobs: FileBlobs) -> None:
    ref = blobs.put(slots())
    with blobs.path(ref.digest).open("ab") as file:
        file.write(b"x")
    with pytest.raises(StorageFailed) as damaged:
        blobs.open(ref)
    assert damaged.value.code == "storage.damaged"
    assert not blobs.check(ref)


def test_a_changed_byte_is_found(blobs: FileBlobs) -> None:
    ref = blobs.put(slots())
    assert blobs.check(ref)
    data = bytearray(blobs.path(ref.digest).read_bytes())
    data[-1] ^= 1
    blobs.path(ref.digest).write_bytes(data)
    assert not blobs.check(ref)


def test_only_what_is_named_is_kept(blobs: FileBlobs) -> None:
    refs = [blobs.put(slots(count)) for count in range(1, 5)]
    assert blobs.keep_only({refs[1].digest}) == 3
    assert blobs.digests() == [refs[1].digest]


def open_files(folder: Path) -> int:
    """How many of this process's descriptors are of files in that folder."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            count += str(descriptor.readlink()).startswith(str(folder))
    return count


def test_no_descriptor_stays_open(blobs: FileBlobs, tmp_path: Path) -> None:
    ref = blobs.put(slots())
    found = [blobs.get(ref) for _ in range(20)]
    assert open_files(tmp_path) == 20
    found.clear()
    gc.collect()
    assert open_files(tmp_path) == 0


@given(start=st.integers(-300, 300), stop=st.integers(-300, 300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_source_slices_like_bytes(tmp_path: Path, start: int, stop: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA[:256])
    assert FileSource(path)[start:stop] == DATA[:256][start:stop]


def test_a_source_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    pieces = list(FileSource(path).pieces(5))
    assert b"".join(pieces) == DATA[5:]
    assert max(map(len, pieces)) == PIECE_BYTES


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    source = FileSource(path)
    os.truncate(path, 10)
    with pytest.raises(StorageFailed, match="became shorter"):
        source[0:20]


def test_a_large_blob_is_never_in_memory(blobs: FileBlobs) -> None:
    """256 MiB in a sparse file, put again under its own name, opened, and partly read."""
    layout = Layout.of([("w", "F32", (64 * 2**20,))])
    path = blobs.temporary()
    path.write_bytes(layout.header)
    os.truncate(path, len(layout.header) + layout.nbytes)
    ref = BlobRef(digest_of(FileSource(path).pieces()), path.stat().st_size)
    blobs.adopt(path, ref)
    tracemalloc.start()
    try:
        opened = blobs.get(ref)
        assert blobs.put(opened) == ref
        assert blobs.check(ref)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * 2**20


# Task of the steps


def test_the_order_of_the_system_calls(blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsync(file) < rename < fsync(folder): what a crash of the machine needs, and killing a process can't show."""
    calls: list[tuple[str, str]] = []
    fsync, rename = os.fsync, Path.rename

    def synced(descriptor: int) -> None:
        calls.append(("fsync", str(Path(f"/proc/self/fd/{descriptor}").readlink())))
        fsync(descriptor)

    def renamed(path: Path, target: Path) -> Path:
        calls.append(("rename", str(path)))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    blobs.put(slots())
    write_file(blobs.folder / "small", b"x", "small")
    send(blobs, DATA)
    calls = [call for call in calls if call != ("fsync", str(blobs.folder / "partial"))]  # a new folder in it
    assert [name for name, _ in calls] == ["fsync", "rename", "fsync"] * 3
    for file, moved, folder in zip(calls[::3], calls[1::3], calls[2::3], strict=True):
        assert file[1] == moved[1] != folder[1] == str(blobs.folder)


@pytest.mark.parametrize("step", STEPS)
def test_crash_points_come_in_order(tmp_path: Path, step: str) -> None:
    passed: list[str] = []

    def at(point: str) -> None:
        passed.append(point)
        if point == f"blob.{step}":
            raise KeyboardInterrupt

    blobs = FileBlobs(tmp_path / "blobs", at)
    with pytest.raises(KeyboardInterrupt):
        blobs.put(slots())
    assert passed == [f"blob.{name}" for name in STEPS[: STEPS.index(step) + 1]]
    assert len(blobs.digests()) == (1 if step in ("renamed", "kept") else 0)


def test_a_small_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"old", "file")

    def at(point: str) -> None:
        if point == "file.synced":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(path, b"new", "file", at)
    assert path.read_bytes() == b"old"
    write_file(path, b"new", "file")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600


# A disk that fails


@pytest.mark.parametrize(
    ("number", "code", "hint"),
    [
        (errno.ENOSPC, "storage.full", "free some space"),
        (errno.EDQUOT, "storage.full", "free some space"),
        (errno.EACCES, "storage.denied", "who owns it"),
        (errno.EROFS, "storage.denied", "mount its file system"),
        (errno.EIO, "storage.failed", "check the disk"),
    ],
)
@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_failing_disk_is_named(
    blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch, call: str, number: int, code: str, hint: str
) -> None:
    def fail(*args: object) -> None:
        raise OSError(number, os.strerror(number))

    if call == "rename":
        monkeypatch.setattr(Path, "rename", fail)
    else:
        monkeypatch.setattr(os, call, fail)
    with pytest.raises(StorageFailed) as failed:
        blobs.put(slots())
    assert failed.value.code == code
    assert hint in failed.value.hint
    with pytest.raises(StorageFailed):
        write_file(blobs.folder / "small", b"x", "small")
    monkeypatch.undo()
    assert blobs.digests() == []
    assert list((blobs.folder / "tmp").iterdir()) == []
    assert not (blobs.folder / "small").exists()
    assert blobs.put(slots()).digest in blobs.digests()  # and goes on when the disk is well again


def test_a_full_disk_for_real(tmp_path: Path) -> None:
    """A limit on the size of a file stands for a disk that is full: half of the blob was written already."""
    code = (
        "import resource, signal, sys; from pathlib import Path; import numpy as np\n"
        "from shoal.runtime.blob_files import FileBlobs; from shoal.core.model.tree import Tree\n"
        "from shoal.core.errors import StorageFailed\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))\n"
        f"blobs = FileBlobs(Path({str(tmp_path)!r}) / 'b')\n"
        "try:\n    blobs.put({'model': Tree.of({'w': np.zeros(2**20, np.float32)})})\n"
        "except StorageFailed as error:\n"
        "    print(error.code, blobs.digests(), list((blobs.folder / 'tmp').iterdir()))\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout == "storage.failed [] []\n"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed):
        make_folder(tmp_path / "file" / "below")


# Blobs over the network


def send(blobs: FileBlobs, data: bytes, start: int = 0, ref: BlobRef = REF, owner: str = "a") -> None:
    with blobs.partials.incoming(owner, ref, start) as incoming:
        for place in range(0, len(data), 100_000):
            incoming.write(data[place : place + 100_000])
        incoming.finish()


def break_off(blobs: FileBlobs, after: int) -> None:
    """A connection that breaks after that many bytes."""
    with suppress(ConnectionError), blobs.partials.incoming("a", REF) as incoming:
        incoming.write(DATA[:after])
        raise ConnectionError


def litter(blobs: FileBlobs) -> list[str]:
    return [path.name for folder in ("tmp", "partial") for path in (blobs.folder / folder).rglob("*") if path.is_file()]


def test_a_blob_comes_in(blobs: FileBlobs) -> None:
    send(blobs, DATA)
    assert blobs.open(REF)[:] == DATA
    assert litter(blobs) == []


@pytest.mark.parametrize("kept", [1, 100_000, 1_000_000, len(DATA) - 1, len(DATA)])
def test_a_blob_that_broke_off_is_resumed(blobs: FileBlobs, kept: int) -> None:
    break_off(blobs, kept)
    assert blobs.partials.offset("a", REF.digest) == kept
    assert blobs.partials.offset("b", REF.digest) == 0  # each node has its own
    assert not blobs.has(REF.digest)
    send(blobs, DATA[kept:], kept)
    assert blobs.check(REF)
    assert litter(blobs) == []


def test_a_sender_may_go_back(blobs: FileBlobs) -> None:
    break_off(blobs, 5000)
    send(blobs, DATA[3000:], 3000)
    assert blobs.check(REF)


@pytest.mark.parametrize("kept", [0, 100])
def test_a_gap_is_refused(blobs: FileBlobs, kept: int) -> None:
    break_off(blobs, kept)
    with pytest.raises(Refused) as refused:
        send(blobs, DATA[200:], 200)
    assert refused.value.code == "blob.offset"
    assert blobs.partials.offset("a", REF.digest) == kept  # existing files stay


def test_other_bytes_are_refused_and_dropped(blobs: FileBlobs) -> None:
    with pytest.raises(InvalidPayload) as wrong:
        send(blobs, DATA[:-1] + b"x")
    assert wrong.value.code == "blob.digest"
    assert (litter(blobs), blobs.digests()) == ([], [])


def test_more_bytes_than_announced_are_refused(blobs: FileBlobs) -> None:
    with pytest.raises(InvalidPayload) as wrong:
        send(blobs, DATA + b"x")
    assert wrong.value.code == "payload.length"
    assert (litter(blobs), blobs.digests()) == ([], [])


def test_too_few_bytes_are_kept_for_a_resumption(blobs: FileBlobs) -> None:
    with pytest.raises(Refused) as short:
        send(blobs, DATA[:-1])
    assert short.value.code == "blob.short"
    send(blobs, DATA[-1:], len(DATA) - 1)
    assert blobs.check(REF)


def test_a_restart_forgets_what_came(blobs: FileBlobs) -> None:
    with blobs.partials.incoming("a", REF) as incoming:
        incoming.write(b"something else")
        incoming.restart()
        incoming.write(DATA)
        incoming.finish()
    assert blobs.check(REF)


def test_two_writers_do_not_meet(blobs: FileBlobs) -> None:
    """A connection that is only thought dead goes on writing other bytes: the blob that was checked stays as it is."""
    with blobs.partials.incoming("a", REF) as old:
        old.write(DATA[:1000])
        send(blobs, DATA)
        old.write(b"x" * 1000)
        assert blobs.check(REF)
    assert blobs.check(REF)


def test_many_threads_put_the_same(blobs: FileBlobs) -> None:
    found: list[BlobRef] = []
    threads = [threading.Thread(target=lambda: found.append(blobs.put(slots(50_000)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert blobs.check(found[0])
    assert litter(blobs) == []


def test_a_sweep_after_a_crash(blobs: FileBlobs) -> None:
    (blobs.folder / "tmp" / "left.tmp").write_bytes(b"x")
    incoming = blobs.partials.incoming("a", REF)
    incoming.write(DATA[:700])
    os.close(incoming._descriptor)  # as if the process had died here
    blobs.sweep(older_s=3600.0)
    assert len(litter(blobs)) == 2  # young ones may be in use
    blobs.sweep()
    assert litter(blobs) == [REF.digest]
    assert blobs.partials.offset("a", REF.digest) == 700
    send(blobs, DATA[700:], 700)
    assert blobs.check(REF)


def test_old_partials_are_given_up(blobs: FileBlobs) -> None:
    break_off(blobs, 700)
    assert blobs.partials.drop(3600.0) == 0
    assert blobs.partials.drop(-1.0) == 1
    assert blobs.partials.offset("a", REF.digest) == 0


@pytest.mark.parametrize("owner", ["../x", "a/b", "", "..", "."])
def test_owners_cannot_leave_the_folder(blobs: FileBlobs, owner: str) -> None:
    with pytest.raises(AssertionError):
        blobs.partials.incoming(owner, REF)


def test_free_space_is_known(blobs: FileBlobs) -> None:
    assert free_bytes(blobs.folder) > 0


def test_an_empty_tree_is_a_blob(blobs: FileBlobs) -> None:
    ref = blobs.put({"model": zeros(Layout.of([]))})
    assert blobs.check(ref)
    assert durable_files.digest_of([blobs.open(ref)[:]]) == ref.digest
