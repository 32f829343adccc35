"""Identity of this node at one coordinator, and its state folder.

FOLDER/COORDINATOR/lock               held by the one process that works with this folder
FOLDER/COORDINATOR/credential.json    for the owner's eyes alone (0600)
FOLDER/COORDINATOR/enrolment_key.json     the key of an enrolment whose answer has not come yet
FOLDER/COORDINATOR/pending_credential.json     a credential that this node has made, and that may not be known yet
FOLDER/COORDINATOR/jobs/JOB/          see `spool`
FOLDER/COORDINATOR/errors/            tracebacks of the learner's failures, the newest few
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from shoal.core.errors import Refused, StorageFailed
from shoal.runtime.durable_files import CrashPoint, make_folder, no_crash, storing, write_file
from shoal.runtime.http.coordinator_url import Address
from shoal.validation.message_checks import NAME
from shoal_edge_client.spool import REMOVED, Spool

ERRORS_KEPT = 20


@dataclass(frozen=True)
class Identity:
    """A node's name at a coordinator, and the secret that proves it."""

    url: str
    name: str
    credential: str

    def __repr__(self) -> str:
        return f"Identity({self.url!r}, {self.name!r})"


class StateFolder:
    """The state folder of one node at one coordinator. A context manager that holds an exclusive lock."""

    def __init__(self, folder: Path, address: Address, at: CrashPoint = no_crash) -> None:
        self.folder, self.url, self._at = folder / address.slug, address.url, at
        self._lock = -1
        self.log: Any = structlog.get_logger("edge_client.identity")

    def __enter__(self) -> Self:
        make_folder(self.folder)
        with storing(self.folder):
            self._lock = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock)
                raise Refused(
                    f"another edge client works with {self.folder}",
                    code="state.locked",
                    hint="end it, or give this one another name or another state folder",
                ) from None
            for leftover in (self.folder / "jobs").glob(f".*{REMOVED}"):
                shutil.rmtree(leftover)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        os.close(self._lock)

    def identity(self) -> Identity | None:
        """Return this node's identity; None before it has enrolled. Raises `StorageFailed` for an unreadable file."""
        path = self.folder / "credential.json"
        with storing(path):
            if not path.exists():
                return None
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                self.log.warning("others could read the credential: they no longer can", file=str(path))
                path.chmod(0o600)
            try:
                return Identity(**json.loads(path.read_bytes()))
            except (ValueError, TypeError) as error:
                hint = "remove it and enrol again with a new token"
                raise StorageFailed(f"{path}: {error}", code="storage.damaged", hint=hint) from None

    def save_identity(self, identity: Identity) -> None:
        """Store the identity durably."""
        write_file(self.folder / "credential.json", json.dumps(asdict(identity)).encode(), "credential", self._at)
        with storing(self.folder):
            for name in ("enrolment_key.json", "pending_credential.json"):
                (self.folder / name).unlink(missing_ok=True)

    def enrolment_key(self, token: str) -> str:
        """Return the idempotency key for enrolling with this token; the same until enrolment succeeds, also after a
        crash."""
        path = self.folder / "enrolment_key.json"
        with storing(path):
            known = json.loads(path.read_bytes()) if path.exists() else {}
        used_for = hashlib.sha256(token.encode()).hexdigest()
        if known.get("token_sha256") != used_for:
            known = {"token_sha256": used_for, "key": secrets.token_urlsafe(24)}
            write_file(path, json.dumps(known).encode(), "enrolling", self._at)
        return str(known["key"])

    def pending_credential(self) -> str:
        """Return a new credential; the same until the coordinator accepts it, also after a crash."""
        path = self.folder / "pending_credential.json"
        with storing(path), suppress(ValueError, KeyError, TypeError):
            if path.exists():
                return str(json.loads(path.read_bytes())["credential"])
        credential = "shn_" + secrets.token_urlsafe(32)
        write_file(path, json.dumps({"credential": credential}).encode(), "rejoining", self._at)
        return credential

    def spool(self, job: str) -> Spool:
        return Spool(self.job_folder(job), job, self._at)

    def job_folder(self, job: str) -> Path:
        assert NAME.fullmatch(job), job
        return self.folder / "jobs" / job

    def jobs(self) -> list[str]:
        """Return the names of the jobs with saved state."""
        folder = self.folder / "jobs"
        with storing(folder):
            return (
                sorted(path.name for path in folder.iterdir() if NAME.fullmatch(path.name)) if folder.is_dir() else []
            )

    def save_traceback(self, name: str, text: str) -> Path:
        """Write a traceback to the folder `errors`, which keeps the newest few."""
        folder = self.folder / "errors"
        make_folder(folder)
        with storing(folder):
            path = folder / f"{name}.txt"
            path.write_text(text, encoding="utf-8", errors="backslashreplace")  # it may name a file in another encoding
            kept = sorted(folder.glob("*.txt"), key=lambda one: one.stat().st_mtime)
            for old in kept[:-ERRORS_KEPT]:
                old.unlink(missing_ok=True)
        return path
