"""The JSON files of a node as a peer of one job, each replaced as a whole and read leniently.

FOLDER/machine.json       the machine's state and audit sums, saved before a message is sent
FOLDER/job.json           the job as the coordinator described it, for a start while the coordinator is away
FOLDER/documents.json     the charter, the newest roster and this node's certificate
FOLDER/checkpoints.json   the newest versions signed by the coordinator, and their models' hashes
FOLDER/incarnation.json         the incarnation of the coordinator that has the term
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from shoal.runtime.durable_files import CrashPoint, storing, sync_folder, write_file
from shoal.validation import strict_json
from shoal_edge_client.spool import read_or_discard

T = TypeVar("T")


class PeerFiles:
    """The files of one job. Crash points: the files' names. All methods block."""

    def __init__(self, folder: Path, at: CrashPoint, log: Any) -> None:
        self.folder, self._at, self._log = folder, at, log

    def load(self, name: str, parse: Callable[[dict[str, Any]], T]) -> T | None:
        """Return the parsed values of a file; None if it is missing or, with a warning, if it is damaged."""
        return read_or_discard(self.folder / f"{name}.json", lambda data: parse(strict_json.loads_own(data)), self._log)

    def save(self, name: str, values: Mapping[str, Any]) -> None:
        """Replace a file durably. Raises `StorageFailed`, also if the job's folder has been deleted."""
        with storing(self.folder):
            if not self.folder.is_dir():
                self.folder.mkdir(mode=0o700, exist_ok=True)
                sync_folder(self.folder.parent)
        write_file(self.folder / f"{name}.json", json.dumps(values).encode(), name, self._at)

    def job_info(self) -> dict[str, Any] | None:
        """Return the saved job description."""
        return self.load("job", dict)

    def save_job_info(self, found: Mapping[str, Any]) -> None:
        """Save the job description."""
        self.save("job", {"spec": found["spec"], "created_at": found["created_at"]})

    def documents(self) -> dict[str, Any] | None:
        """Return the saved trust documents, unverified."""
        return self.load("documents", dict)
