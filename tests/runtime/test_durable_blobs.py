"""A blob that came whole is stored as durably as one that came in pieces."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.errors import InvalidPayload
from shoal.core.protocol.message import BlobRef
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.durable_files import STEPS, digest_of

DATA = b"some bytes"
REF = BlobRef(digest_of([DATA]), len(DATA))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_every_step_of_a_durable_write_is_taken(tmp_path: Path) -> None:
    steps: list[str] = []
    blobs = FileBlobs(tmp_path, steps.append)
    blobs.keep(REF, DATA)
    assert steps == [f"blob.{step}" for step in STEPS]
    assert blobs.open(REF)[:] == DATA
    assert files(tmp_path) == [REF.digest]


def test_what_is_there_is_not_written_again(tmp_path: Path) -> None:
    steps: list[str] = []
    blobs = FileBlobs(tmp_path, steps.append)
    blobs.keep(REF, DATA)
    blobs.keep(REF, DATA)
    assert len(steps) == len(STEPS)
    assert files(tmp_path) == [REF.digest]


def test_bytes_of_another_name_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    with pytest.raises(InvalidPayload) as refused:
        blobs.keep(REF, DATA + b"!")
    assert refused.value.code == "blob.digest"
    assert files(tmp_path) == []


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(point: str) -> None:
        if point == "blob.synced":
            raise OSError(28, "No space left on device")

    blobs = FileBlobs(tmp_path, fail)
    with pytest.raises(Exception, match="no space left"):
        blobs.keep(REF, DATA)
    assert files(tmp_path) == []
