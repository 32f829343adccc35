"""Messages as lines of files in a folder that two machines share: one machine appends, the other polls.

    NAME.0, NAME.1, …      "CRC32 JSON" lines; a long file ends with {"next": true}, and the next one goes on

A reader opens a file that exists at each look. NFS guarantees that an open file shows all that its writer has synced.
It guarantees less about new names: a client may remember for a minute that a file was not there. Therefore messages
are not files of their own, and the next file exists before the present one names it. A line counts once its checksum
fits, because parts of a file may arrive in any order.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.core.errors import StorageFailed
from shoal.runtime.durable_files import storing, write_all
from shoal.runtime.training.ipc import LINE_BYTES_MAX

FILE_BYTES = 16 << 20
"""Length from which on the next file is begun."""
NEXT = {"next": True}


class MessageLogWriter:
    """The writer of one sequence of messages. Thread-safe."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name, self._lock = folder, name, threading.Lock()
        self._number = self._end = 0
        self._descriptor = self._create(0)

    def append(self, message: Mapping[str, Any], *, sync: bool = True) -> None:
        """Append a message; unless `sync` is set, the reader may see it later. Raises `StorageFailed`."""
        with self._lock, storing(self._folder):
            if self._descriptor < 0:
                raise StorageFailed(f"{self._folder} is closed")
            self._write(message, sync)
            if self._end < FILE_BYTES:
                return
            following = self._create(self._number + 1)
            try:
                self._write(NEXT, sync=True)
            except OSError:
                os.close(following)
                raise
            os.close(self._descriptor)
            self._descriptor, self._number, self._end = following, self._number + 1, 0

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor = -1

    def _create(self, number: int) -> int:
        path = file_path(self._folder, self._name, number)
        with storing(path):
            return os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)

    def _write(self, message: Mapping[str, Any], sync: bool) -> None:
        """Write a line at the end. One that was cut off by a full disk is overwritten by the next."""
        body = json.dumps(message).encode()
        line = b"%08x %s\n" % (zlib.crc32(body), body)
        os.lseek(self._descriptor, self._end, os.SEEK_SET)
        write_all(self._descriptor, line)
        if sync:
            os.fsync(self._descriptor)
        self._end += len(line)


class MessageLogReader:
    """The reader of one sequence of messages."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._number = self._start = 0

    def read(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived since the last call. Raises `OSError`; `ValueError` for a line that is
        too long."""
        found: list[dict[str, Any]] = []
        while (message := self._read_some(found)) is not None:
            if message == NEXT:
                file_path(self._folder, self._name, self._number).unlink(missing_ok=True)
                self._number, self._start = self._number + 1, 0
        return found

    def _read_some(self, found: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Read on, and return the last line, which may continue elsewhere; None if there is no further one."""
        with file_path(self._folder, self._name, self._number).open("rb") as file:
            file.seek(self._start)
            data = file.read(LINE_BYTES_MAX)
        *lines, rest = data.split(b"\n")
        if len(rest) == LINE_BYTES_MAX:
            raise ValueError(f"a message has more than {LINE_BYTES_MAX} bytes")
        message = None
        for line in lines:
            checksum, _, body = line.partition(b" ")
            if checksum != b"%08x" % zlib.crc32(body):
                return None
            self._start += len(line) + 1
            message = json.loads(body)
            if message == NEXT:
                break
            found.append(message)
        return message


def file_path(folder: Path, name: str, number: int) -> Path:
    """Return the path of one file of a sequence."""
    return folder / f"{name}.{number}"
