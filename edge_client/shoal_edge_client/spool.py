"""Durable state of a node in one job: the unacknowledged report, and private memory.

    FOLDER/job.json       the job's time of creation, which tells jobs of one name apart
    FOLDER/memory.json    digest and length of the private memory after the last counted report
    FOLDER/report         one line of JSON {"pending": …, "sha256": …}, then the frame that is sent
    FOLDER/blobs/        received models, updates too large for a frame, private memory

A report is stored before its first byte is sent, and until it is acknowledged; files are replaced as a whole. After a
crash there is either no report (the task is repeated with the same seed and therefore the same result) or a complete
one, which is sent again; the coordinator counts it once.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog

from shoal.core.errors import InvalidPayload, ShoalError, StorageFailed, message_of
from shoal.core.model.tree import Slots, Tree
from shoal.core.protocol.message import BlobRef, Report
from shoal.runtime.blob_files import FileBlob, FileBlobs
from shoal.runtime.durable_files import CrashPoint, digest_of, make_folder, no_crash, storing, write_file
from shoal.wire import codec
from shoal.wire.payload import ByteSource, layouts_of, payload_layout, payload_pieces

T = TypeVar("T")

REMOVED = ".removed"
"""Suffix of a job's folder while it is deleted."""


@dataclass(frozen=True)
class SpoolState:
    """The state that an earlier process left."""

    memory: BlobRef | None = None
    report: Report | None = None
    pending_memory: BlobRef | None = None


class Spool:
    """One job's files: `DurableState`, and the job's blobs. Crash points: spool.…, memory.…, blob.…"""

    def __init__(self, folder: Path, job: str, at: CrashPoint = no_crash) -> None:
        self.folder, self.job, self._at = folder, job, at
        make_folder(folder)
        self.blobs = FileBlobs(folder / "blobs", at)
        self._small: dict[str, bytes] = {}
        self._memory: BlobRef | None = None
        self._base: BlobRef | None = None
        self.log: Any = structlog.get_logger("edge_client.spool").bind(job=job)

    def load(self) -> SpoolState:
        """Load the state of an earlier process; log and discard damaged files."""
        for leftover in self.folder.glob("*.tmp"):
            leftover.unlink(missing_ok=True)
        self.blobs.sweep()
        self._memory = read_or_discard(self.folder / "memory.json", self._load_memory, self.log)
        report, pending = read_or_discard(self.folder / "report", self._load_report, self.log) or (None, None)
        return SpoolState(self._memory, report, pending)

    def _load_memory(self, data: bytes) -> BlobRef:
        return self._checked(json.loads(data))

    def _load_report(self, data: bytes) -> tuple[Report, BlobRef | None]:
        line, _, frame = data.partition(b"\n")
        head = json.loads(line)
        if digest_of([frame]) != head["sha256"]:
            raise InvalidPayload("its checksum is wrong")
        found = codec.decode(frame)
        if not isinstance(found.message, Report) or found.job != self.job:
            raise InvalidPayload("it holds no report of this job")
        body, pending = found.message.blob, self._checked(head["pending"]) if head["pending"] else None
        if body is not None and found.payload:
            self._small[body.digest] = found.payload
        elif body is not None:
            self._checked(asdict(body))
        return found.message, pending

    def _checked(self, values: dict[str, Any]) -> BlobRef:
        """Return a reference from a file after checking its blob."""
        ref = BlobRef(str(values["digest"]), int(values["nbytes"]))
        if ref.digest not in self.blobs.digests() or not self.blobs.check(ref):
            raise StorageFailed(f"blob {ref.digest[:12]}… is missing or damaged")
        return ref

    def bind_to_job(self, made_at: str) -> bool:
        """Return whether the files belong to the job created at that time; otherwise delete them."""
        path = self.folder / "job.json"
        with storing(path):
            known = json.loads(path.read_bytes())["created_at"] if path.exists() else None
        if known == made_at:
            return True
        if known is not None:
            self.log.warning("another job of this name was here: its report and private memory are deleted")
            self.forget()
            self.blobs = FileBlobs(self.folder / "blobs", self._at)
        write_file(path, json.dumps({"created_at": made_at}).encode(), "job", self._at)
        return known is None

    # Methods for the trainer

    def put_update(self, blob: Slots | FileBlob) -> BlobRef:
        """Store the update of a report: in memory if the frame can hold it, else durably in a file."""
        if _nbytes(blob) > codec.INLINE_BYTES_MAX:
            return self.blobs.take(blob)
        if isinstance(blob, FileBlob):
            with storing(blob.path):
                payload = blob.path.read_bytes()
                blob.path.unlink()
        else:
            payload = b"".join(bytes(piece) for piece in payload_pieces(blob))
        ref = BlobRef(digest_of([payload]), len(payload))
        self._small[ref.digest] = payload
        return ref

    def put_memory(self, memory: Slots | FileBlob) -> BlobRef:
        """Store private memory durably, to be committed when its report counts."""
        return self.blobs.take(memory)

    def put_base(self, base: Slots | FileBlob) -> BlobRef:
        """Store the model that the hub sends differences to; return its reference."""
        self._base = self.blobs.take(base)
        return self._base

    # Methods for the pump

    def save_report(self, report: Report | None, pending: BlobRef | None) -> None:
        """Store a report, and the memory that it would commit, durably; None: delete it and unnamed blobs."""
        path = self.folder / "report"
        if report is None:
            with storing(path):
                path.unlink(missing_ok=True)
            self._at("spool.removed")
            self._small.clear()
            self.blobs.keep_only({ref.digest for ref in (self._memory, pending, self._base) if ref is not None})
            return
        payload = self._small.get(report.blob.digest, b"") if report.blob is not None else b""
        frame = codec.encode(codec.Frame(self.job, report, payload))
        head = {"pending": asdict(pending) if pending else None, "sha256": digest_of([frame])}
        write_file(path, json.dumps(head).encode() + b"\n" + frame, "spool", self._at)

    def commit_memory(self, ref: BlobRef) -> None:
        """Commit this private memory durably."""
        write_file(self.folder / "memory.json", json.dumps(asdict(ref)).encode(), "memory", self._at)
        self._memory = ref

    def report_blob(self, ref: BlobRef) -> ByteSource:
        """Return the blob of the stored report."""
        return self._small.get(ref.digest) or self.blobs.open(ref)

    def forget(self) -> None:
        """Delete everything: the job has ended. A thread that still saves finds no folder any more."""
        with storing(self.folder):
            removed = self.folder.with_name(f".{self.folder.name}.{secrets.token_hex(4)}{REMOVED}")
            self.folder.rename(removed)
            shutil.rmtree(removed)
        self._small.clear()
        self._memory = None


def read_or_discard(path: Path, parse: Callable[[bytes], T], log: Any) -> T | None:
    """Parse a file; return None if it is missing or, with a warning, if it is damaged."""
    try:
        with storing(path):
            return parse(path.read_bytes()) if path.exists() else None
    except (ShoalError, ValueError, KeyError, TypeError) as error:
        log.warning("an unreadable file is discarded", file=str(path), why=message_of(error))
        return None


def _nbytes(blob: Slots | FileBlob) -> int:
    """Return the length as a payload."""
    if isinstance(blob, FileBlob):
        return blob.ref.nbytes
    nbytes = len(payload_layout(layouts_of(blob)).header)
    return nbytes + sum(value.layout.nbytes if isinstance(value, Tree) else 8 for value in blob.values())
