"""How a job began, as the database keeps it."""

from __future__ import annotations

import os
from typing import Any

from sqlalchemy import Connection, insert

from shoal.core.message import Ref
from shoal.runtime.store import FileBodies
from shoal.wire import open_payload
from shoal_coordinator import describe, journal, papers, readmission
from shoal_coordinator.manifests import Given
from shoal_coordinator.start import Start
from shoal_coordinator.tables import jobs


def add_job(c: Connection, values: dict[str, Any], begins: Start, given: Given | None, hold: bool) -> tuple[str, ...]:
    """A new job; with the papers of its life before, if it had one: then the nodes that are known by these."""
    c.execute(insert(jobs).values(values))
    if hold:
        journal.begin_paused(c, values["name"])
    if given is None:
        return ()
    papers.keep(c, given.papers, papers.LEAP)
    note = journal.note("state", describe.rebuilt_text(begins), begins.version, begins.node)
    journal.tell_aside(c, values["name"], "note", note)
    return readmission.vouch(c, given.papers.roster)


def share(bodies: FileBodies, other: FileBodies, ref: Ref) -> None:
    """Have a body of `other`'s here too, durably: as a second name of its file, for models of gigabytes are asked for
    while somebody waits; as a copy where the disk knows no second names. Raises `StorageFailed`."""
    source, temporary = other.open(ref), bodies.temporary()
    try:
        os.link(other.path(ref.digest), temporary)
    except OSError:
        bodies.put(open_payload(source))
        return
    try:
        bodies.adopt(temporary, ref)
    finally:
        temporary.unlink(missing_ok=True)


def start_row(start: Start) -> dict[str, Any] | None:
    """What the row of a job says of where it began."""
    if start.model is None:
        return None
    row: dict[str, Any] = {"digest": start.model.digest, "nbytes": start.model.nbytes}
    return row | ({"version": start.version, "term": start.term, "node": start.node} if start.term else {})


def start_of(row: dict[str, Any] | None) -> Start:
    """Where a job of the database begins. (An earlier release kept only the model.)"""
    if row is None:
        return Start()
    return Start(Ref(row["digest"], row["nbytes"]), row.get("version", 0), row.get("term", 0), row.get("node", ""))
