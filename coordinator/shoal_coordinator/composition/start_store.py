"""The start of a job in the database."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from sqlalchemy import Connection, insert, select

from shoal.core.protocol.message import BlobRef
from shoal.runtime.blob_files import FileBlobs
from shoal.wire.payload import open_payload
from shoal_coordinator.jobs import journal
from shoal_coordinator.jobs.hub_replay import JobStart
from shoal_coordinator.nodes import reenrolment
from shoal_coordinator.peers import trust_documents
from shoal_coordinator.peers.signed_checkpoints import RecoveredJob
from shoal_coordinator.storage.tables import jobs
from shoal_coordinator.telemetry import job_events


def add_job(
    c: Connection, values: dict[str, Any], begins: JobStart, given: RecoveredJob | None, paused: bool
) -> tuple[str, ...]:
    """Add a job, with the trust documents of an earlier coordinator, if it had one; return the nodes that these
    name."""
    c.execute(insert(jobs).values(values))
    if paused:
        journal.begin_paused(c, values["name"])
    if given is None:
        return ()
    trust_documents.store_documents(c, given.documents, trust_documents.LEAP)
    event = job_events.job_event("state", begins.recovered_text(), begins.version, begins.node)
    job_events.add_feed_item(c, values["name"], "job_event", event)
    return reenrolment.add_roster(c, given.documents.roster)


class StoredBlob(NamedTuple):
    """A blob, and the folder that has it."""

    ref: BlobRef
    blobs: FileBlobs


def jobs_with_base(c: Connection, digest: str) -> list[str]:
    """Return the names of the jobs that keep this base model."""
    base = jobs.c.start["base"]["digest"].as_string()
    return list(c.execute(select(jobs.c.name).where(base == digest).order_by(jobs.c.name)).scalars())


def link_blob(blobs: FileBlobs, other: FileBlobs, ref: BlobRef) -> None:
    """Link a blob of `other` here, durably: as a hard link, because models of gigabytes are requested meanwhile; as a
    copy where the file system has no links. Raises `StorageFailed`."""
    source, temporary = other.open(ref), blobs.temporary()
    try:
        os.link(other.path(ref.digest), temporary)
    except OSError:
        blobs.put(open_payload(source))
        return
    try:
        blobs.adopt(temporary, ref)
    finally:
        temporary.unlink(missing_ok=True)


def start_row(start: JobStart) -> dict[str, Any] | None:
    """Return the row's value for a job's start."""
    row = _ref_row(start.model) if start.model is not None else {}
    row |= {"version": start.version, "term": start.term, "node": start.node} if start.term else {}
    return row | ({"base": _ref_row(start.base)} if start.base is not None else {}) or None


def start_of(row: dict[str, Any] | None) -> JobStart:
    """Return a job's start from its row."""
    if row is None:
        return JobStart()
    model, base = (
        BlobRef(one["digest"], one["nbytes"]) if "digest" in one else None for one in (row, row.get("base", {}))
    )
    return JobStart(model, row.get("version", 0), row.get("term", 0), row.get("node", ""), base)


def _ref_row(ref: BlobRef) -> dict[str, Any]:
    return {"digest": ref.digest, "nbytes": ref.nbytes}
