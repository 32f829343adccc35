"""Shared secrets: the signing key, which lies in each coordinator's folder and must be the same for all.

Nodes know their coordinator by that key. The first leader stores a copy in the database; the others read it.
"""

from __future__ import annotations

from pathlib import Path

import structlog
from sqlalchemy import Connection, select

from shoal.runtime.durable_files import storing, write_file
from shoal.trust.keys import load_or_create
from shoal_coordinator.peers.trust_documents import KEY_FILE
from shoal_coordinator.storage.dialects import insert
from shoal_coordinator.storage.tables import shared_secrets

log = structlog.get_logger()

REPLACED = ".replaced"
TOKEN = "operator.token"  # noqa: S105 - what it is called


def store_token(connection: Connection, hashed: str) -> None:
    """Store the hash of the leader's operator token, which standbys compare with theirs at their start."""
    row = insert(shared_secrets).values(name=TOKEN, text=hashed)
    connection.execute(row.on_conflict_do_update(index_elements=["name"], set_={"text": hashed}))


def share_key(connection: Connection, folder: Path) -> None:
    """Make the key in the folder equal to that of the database, or store it there. Raises `StorageFailed`."""
    path = folder / KEY_FILE
    known = connection.execute(select(shared_secrets.c.text).where(shared_secrets.c.name == KEY_FILE)).scalar()
    if known is None:
        load_or_create(path)
        row = {"name": KEY_FILE, "text": path.read_text(encoding="ascii")}
        connection.execute(insert(shared_secrets).on_conflict_do_nothing(), row)
        return
    with storing(path):
        if path.exists():
            if path.read_text(encoding="ascii", errors="replace") == known:
                return
            log.warning("the key is not that of the database; it was renamed", file=str(path))
            path.rename(path.with_name(path.name + REPLACED))
        write_file(path, known.encode("ascii"), "key")
