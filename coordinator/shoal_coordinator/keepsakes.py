"""What all coordinators of one database must have alike, though it lies in each one's folder: the key that they sign
with.

Nodes know their coordinator by that key. The first that owns the database leaves a copy there; the others take it over.
"""

from __future__ import annotations

from pathlib import Path

import structlog
from sqlalchemy import Connection, select

from shoal.runtime.store import storing, write_file
from shoal.trust.keys import load_or_make
from shoal_coordinator.dialects import insert
from shoal_coordinator.papers import KEY_FILE
from shoal_coordinator.tables import keepsakes

log = structlog.get_logger()

REPLACED = ".replaced"
TOKEN = "operator.token"  # noqa: S105 - what it is called


def keep_token(connection: Connection, hashed: str) -> None:
    """Leave the hash of the owner's operators' token there, for standbys to compare when they start."""
    row = insert(keepsakes).values(name=TOKEN, text=hashed)
    connection.execute(row.on_conflict_do_update(index_elements=["name"], set_={"text": hashed}))


def share(connection: Connection, folder: Path) -> None:
    """Have the same key in the folder and in the database; that of the database counts. Raises `StorageFailed`."""
    path = folder / KEY_FILE
    known = connection.execute(select(keepsakes.c.text).where(keepsakes.c.name == KEY_FILE)).scalar()
    if known is None:
        load_or_make(path)
        row = {"name": KEY_FILE, "text": path.read_text(encoding="ascii")}
        connection.execute(insert(keepsakes).on_conflict_do_nothing(), row)
        return
    with storing(path):
        if path.exists():
            if path.read_text(encoding="ascii", errors="replace") == known:
                return
            log.warning("another key than the database's; put aside", file=str(path))
            path.rename(path.with_name(path.name + REPLACED))
        write_file(path, known.encode("ascii"), "key")
