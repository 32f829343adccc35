"""Messages as lines of files, which another machine reads while they grow."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import StorageFailed
from shoal.runtime.training import message_log
from shoal.runtime.training.message_log import MessageLogReader, MessageLogWriter, file_path


def test_messages_arrive_once_in_order_over_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_log, "FILE_BYTES", 60)
    writer, reader = MessageLogWriter(tmp_path, "node"), MessageLogReader(tmp_path, "node")
    found: list[dict[str, Any]] = []
    for number in range(20):
        writer.append({"n": number}, sync=number % 2 == 0)
        if number % 5 == 0:
            found += reader.read()
    assert found + reader.read() == [{"n": number} for number in range(20)]
    assert reader.read() == []
    (present,) = tmp_path.iterdir()
    assert present != file_path(tmp_path, "node", 0), "the files that were read are removed"


def test_a_line_counts_once_it_is_whole(tmp_path: Path) -> None:
    """A file server may show the end of a file before its middle."""
    writer, reader = MessageLogWriter(tmp_path, "node"), MessageLogReader(tmp_path, "node")
    writer.append({"n": 1})
    first = file_path(tmp_path, "node", 0).stat().st_size
    writer.append({"text": "abcdef"})
    writer.append({"n": 3})
    path = file_path(tmp_path, "node", 0)
    whole = path.read_bytes()
    for partial in (whole[: first + 20], whole[:first] + bytes(12) + whole[first + 12 :]):
        path.write_bytes(partial)
        assert reader.read() in ([{"n": 1}], [])
    path.write_bytes(whole)
    assert reader.read() == [{"text": "abcdef"}, {"n": 3}]


def test_a_line_that_a_full_disk_cuts_off_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(descriptor: int, data: bytes) -> None:
        os.write(descriptor, data[:9])
        raise OSError(errno.ENOSPC, "no space")

    writer, reader = MessageLogWriter(tmp_path, "node"), MessageLogReader(tmp_path, "node")
    with monkeypatch.context() as full:
        full.setattr(message_log, "write_all", fill)
        with pytest.raises(StorageFailed, match="no space left"):
            writer.append({"lost": True})
    assert reader.read() == []
    writer.append({"n": 1})
    assert reader.read() == [{"n": 1}]


def test_a_line_without_an_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_log, "LINE_BYTES_MAX", 100)
    MessageLogWriter(tmp_path, "node").append({"text": "x" * 100})
    with pytest.raises(ValueError, match="more than 100 bytes"):
        MessageLogReader(tmp_path, "node").read()
