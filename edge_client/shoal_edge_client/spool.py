"""What a node must not forget of one job: the report that the coordinator has not acknowledged, and private memory.

    FOLDER/job.json       which job of that name this is: when it was made
    FOLDER/memory.json    the private memory that the last counted report left behind: its digest and length
    FOLDER/report         one line of JSON {"pending": …, "sha256": …}, then the frame that is sent
    FOLDER/bodies/        models that came, updates too large for a frame, private memory

A report is here before its first byte is sent, and until it was acknowledged; each file is replaced as a whole. After
a crash at any instant there is either no report (the order still stands at the coordinator and will be done again:
seeded, so with the same result) or a whole one, and it is sent again; the coordinator counts it once.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

from shoal import wire
from shoal.core.errors import InvalidPayload, ShoalError, StorageFailed, message_of
from shoal.core.message import Ref, Report
from shoal.core.tree import Slots, Tree
from shoal.runtime.store import CrashPoint, FileBodies, FileBody, digest_of, make_folder, no_crash, storing, write_file


@dataclass(frozen=True)
class Kept:
    """What an earlier process left behind."""

    memory: Ref | None = None
    said: Report | None = None
    pending: Ref | None = None


class Spool:
    """One job's files: `shoal.runtime.pump.Keep`, and the job's bodies. Crash points: spool.…, memory.…, body.…"""

    def __init__(self, folder: Path, job: str, at: CrashPoint = no_crash) -> None:
        self.folder, self.job, self._at = folder, job, at
        make_folder(folder)
        self.bodies = FileBodies(folder / "bodies", at)
        self._small: dict[str, bytes] = {}
        self._memory: Ref | None = None
        self._base: Ref | None = None
        self.log: Any = structlog.get_logger("edge_client.spool").bind(job=job)

    def load(self) -> Kept:
        """What is left of an earlier process. What is damaged is named in the log and given up."""
        for leftover in self.folder.glob("*.tmp"):
            leftover.unlink(missing_ok=True)
        self.bodies.sweep()
        self._memory = self._read("memory.json", self._load_memory)
        said, pending = self._read("report", self._load_report) or (None, None)
        return Kept(self._memory, said, pending)

    def _read(self, name: str, load: Any) -> Any:
        path = self.folder / name
        try:
            with storing(path):
                return load(path.read_bytes()) if path.exists() else None
        except (ShoalError, ValueError, KeyError, TypeError) as error:
            self.log.warning("an unreadable file is given up", file=str(path), why=message_of(error))
            return None

    def _load_memory(self, data: bytes) -> Ref:
        return self._checked(json.loads(data))

    def _load_report(self, data: bytes) -> tuple[Report, Ref | None]:
        line, _, frame = data.partition(b"\n")
        head = json.loads(line)
        if digest_of([frame]) != head["sha256"]:
            raise InvalidPayload("its checksum is wrong")
        found = wire.decode(frame)
        if not isinstance(found.message, Report) or found.job != self.job:
            raise InvalidPayload("it holds no report of this job")
        body, pending = found.message.body, self._checked(head["pending"]) if head["pending"] else None
        if body is not None and found.payload:
            self._small[body.digest] = found.payload
        elif body is not None:
            self._checked(asdict(body))
        return found.message, pending

    def _checked(self, values: dict[str, Any]) -> Ref:
        """A reference that a file holds, to a body that is there."""
        ref = Ref(str(values["digest"]), int(values["nbytes"]))
        if ref.digest not in self.bodies.digests() or not self.bodies.check(ref):
            raise StorageFailed(f"body {ref.digest[:12]}… is missing or damaged")
        return ref

    def belongs_to(self, made_at: str) -> bool:
        """Whether what is here is of the job that was made then. If not, it is wiped: another job has the same name."""
        path = self.folder / "job.json"
        with storing(path):
            known = json.loads(path.read_bytes())["created_at"] if path.exists() else None
        if known == made_at:
            return True
        if known is not None:
            self.log.warning("another job of this name was here: its report and private memory are given up")
            self.forget()
            self.bodies = FileBodies(self.folder / "bodies", self._at)
        write_file(path, json.dumps({"created_at": made_at}).encode(), "job", self._at)
        return known is None

    # What the trainer makes

    def put(self, body: Slots | FileBody) -> Ref:
        """Keep the body of a report: in memory if the frame will hold it, else durably in a file."""
        if _nbytes(body) > wire.INLINE_BYTES_MAX:
            return self.bodies.take(body)
        if isinstance(body, FileBody):
            with storing(body.path):
                payload = body.path.read_bytes()
                body.path.unlink()
        else:
            payload = b"".join(bytes(piece) for piece in wire.payload_pieces(body))
        ref = Ref(digest_of([payload]), len(payload))
        self._small[ref.digest] = payload
        return ref

    def remember(self, memory: Slots | FileBody) -> Ref:
        """Keep private memory as it will be once its report counts, durably."""
        return self.bodies.take(memory)

    def hold(self, base: Slots | FileBody) -> Ref:
        """Keep the model that the hub sends differences to, so that it need not be fetched; return its name."""
        self._base = self.bodies.take(base)
        return self._base

    # What the pump wants

    def said(self, said: Report | None, pending: Ref | None) -> None:
        """Keep a report with the memory that it would commit, durably; None: forget it, and what nothing names."""
        path = self.folder / "report"
        if said is None:
            with storing(path):
                path.unlink(missing_ok=True)
            self._at("spool.removed")
            self._small.clear()
            self.bodies.keep_only({ref.digest for ref in (self._memory, pending, self._base) if ref is not None})
            return
        payload = self._small.get(said.body.digest, b"") if said.body is not None else b""
        frame = wire.encode(wire.Frame(self.job, said, payload))
        head = {"pending": asdict(pending) if pending else None, "sha256": digest_of([frame])}
        write_file(path, json.dumps(head).encode() + b"\n" + frame, "spool", self._at)

    def memory(self, ref: Ref) -> None:
        """This private memory is committed, durably."""
        write_file(self.folder / "memory.json", json.dumps(asdict(ref)).encode(), "memory", self._at)
        self._memory = ref

    def payload(self, ref: Ref) -> wire.ByteSource:
        """The body of the report that is kept."""
        return self._small.get(ref.digest) or self.bodies.open(ref)

    def forget(self) -> None:
        """The job has ended: nothing of it is needed any more."""
        with storing(self.folder):
            shutil.rmtree(self.folder)
        self._small.clear()
        self._memory = None


def _nbytes(body: Slots | FileBody) -> int:
    """How long it is as a payload."""
    if isinstance(body, FileBody):
        return body.ref.nbytes
    nbytes = len(wire.payload_layout(wire.layouts_of(body)).header)
    return nbytes + sum(value.layout.nbytes if isinstance(value, Tree) else 8 for value in body.values())
