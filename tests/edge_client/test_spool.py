"""A node's durable state on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.core.errors import StorageFailed
from shoal.core.model.tree import Slots, Tree
from shoal.core.protocol.message import BlobRef, Report
from shoal.runtime.durable_files import digest_of
from shoal.wire import codec
from shoal.wire.payload import payload_pieces
from shoal_edge_client.spool import Spool, SpoolState

SMALL: Slots = {"model": Tree.of({"w": np.arange(4, dtype=np.float32)})}
LARGE: Slots = {"model": Tree.of({"w": np.arange(100_000, dtype=np.float32)})}


def spool(folder: Path) -> Spool:
    return Spool(folder / "j", "j")


def report(blob: BlobRef | None) -> Report:
    return Report("a", (1, 7), 3, 2.0, blob, {"train/loss": float("inf")})


@pytest.mark.parametrize("slots", [SMALL, LARGE], ids=["small", "large"])
def test_a_report_outlives_its_process(tmp_path: Path, slots: Slots) -> None:
    old = spool(tmp_path)
    body, pending = old.put_update(slots), old.blobs.put({"count": 3.0})
    old.save_report(report(body), pending)
    new = spool(tmp_path)
    assert new.load() == SpoolState(None, report(body), pending)
    payload = new.report_blob(body)
    assert digest_of([payload[0 : len(payload)]]) == body.digest
    assert new.blobs.get(pending) == {"count": 3.0}


def test_a_report_without_a_blob(tmp_path: Path) -> None:
    spool(tmp_path).save_report(report(None), None)
    assert spool(tmp_path).load().report == report(None)


def test_blobs_that_fit_into_a_frame_are_not_written_twice(tmp_path: Path) -> None:
    one = spool(tmp_path)
    body = one.put_update(SMALL)
    assert one.blobs.digests() == []
    assert body == BlobRef(digest_of(payload_pieces(SMALL)), body.nbytes)
    assert one.put_update(LARGE).digest in one.blobs.digests()


def test_the_boundary_between_small_and_large(tmp_path: Path) -> None:
    one = spool(tmp_path)
    for count in range(65_500, 65_540):
        slots: Slots = {"model": Tree.of({"w": np.zeros(count, np.float32)}), "n": 1.0}
        body = one.put_update(slots)
        assert (body.digest in one.blobs.digests()) is (body.nbytes > codec.INLINE_BYTES_MAX)
        one.save_report(report(body), None)
        frame = (tmp_path / "j" / "report").read_bytes().partition(b"\n")[2]
        assert (len(codec.decode(frame).payload) > 0) is (body.nbytes <= codec.INLINE_BYTES_MAX)
    assert one.blobs.digests() != []


def test_an_acknowledged_report_is_forgotten_and_what_only_it_named(tmp_path: Path) -> None:
    one = spool(tmp_path)
    body, memory = one.put_update(LARGE), one.blobs.put({"count": 1.0})
    other = one.blobs.put({"count": 9.0})
    one.save_report(report(body), memory)
    one.commit_memory(memory)
    one.save_report(None, None)
    assert one.blobs.digests() == [memory.digest]
    assert other.digest not in one.blobs.digests()
    assert spool(tmp_path).load() == SpoolState(memory, None, None)
    one.save_report(None, None)  # twice is the same as once


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: b"",
        lambda data: b"{}\n",
        lambda data: b"[]\nx",
        lambda data: b"\xff" + data,
        lambda data: data.replace(b'"pending": null', b'"pending": {"digest": 3}'),
        lambda data: data.replace(b'"pending": null', b'"pending": {"digest": "../../x", "nbytes": 3}'),
    ],
    ids=["short", "changed", "empty", "no-sum", "a-list", "no-text", "no-ref", "a-path"],
)
def test_a_damaged_report_is_given_up(tmp_path: Path, damage) -> None:
    one = spool(tmp_path)
    one.save_report(report(one.put_update(SMALL)), None)
    path = tmp_path / "j" / "report"
    path.write_bytes(damage(path.read_bytes()))
    assert spool(tmp_path).load() == SpoolState()


def test_a_report_whose_blob_is_damaged_is_given_up(tmp_path: Path) -> None:
    one = spool(tmp_path)
    body = one.put_update(LARGE)
    one.save_report(report(body), None)
    path = one.blobs.path(body.digest)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert spool(tmp_path).load() == SpoolState()


def test_a_report_of_another_job_is_given_up(tmp_path: Path) -> None:
    Spool(tmp_path / "j", "other").save_report(report(None), None)
    assert spool(tmp_path).load() == SpoolState()


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b'{"digest": "x", "nbytes": 1}', b'{"digest": "%s", "nbytes": 1}' % (b"0" * 64)]
)
def test_damaged_memory_is_given_up(tmp_path: Path, data: bytes) -> None:
    one = spool(tmp_path)
    one.commit_memory(one.blobs.put({"count": 1.0}))
    (tmp_path / "j" / "memory.json").write_bytes(data)
    assert spool(tmp_path).load() == SpoolState()


def test_what_a_crash_left_behind_is_swept(tmp_path: Path) -> None:
    one = spool(tmp_path)
    (tmp_path / "j" / "report.1234.tmp").write_bytes(b"half")
    (one.blobs.folder / "tmp" / "x.tmp").write_bytes(b"half")
    one.load()
    assert not list(tmp_path.rglob("*.tmp"))


def test_another_job_of_the_same_name_begins_anew(tmp_path: Path) -> None:
    one = spool(tmp_path)
    assert one.bind_to_job("2026-01-01") is True
    one.commit_memory(one.blobs.put({"count": 1.0}))
    one.save_report(report(None), None)
    assert spool(tmp_path).bind_to_job("2026-01-01") is True
    assert spool(tmp_path).load().memory is not None
    two = spool(tmp_path)
    assert two.bind_to_job("2026-02-02") is False
    assert two.load() == SpoolState()
    assert two.put_update(LARGE).digest in two.blobs.digests()  # and it can be worked with


def test_a_job_that_has_ended_leaves_nothing(tmp_path: Path) -> None:
    one = spool(tmp_path)
    one.save_report(report(one.put_update(LARGE)), None)
    one.forget()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import os

    one = spool(tmp_path)
    body = one.put_update(SMALL)

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageFailed) as failed:
        one.save_report(report(body), None)
    assert failed.value.code == "storage.full"
    monkeypatch.undo()
    assert spool(tmp_path).load() == SpoolState()
