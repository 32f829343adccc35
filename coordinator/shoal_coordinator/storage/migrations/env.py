"""Run by alembic: migrate over the connection that the coordinator hands in."""

from __future__ import annotations

from alembic import context
from sqlalchemy import text

from shoal_coordinator.storage.tables import metadata

LOCK = 0x73686F616C
"""Key of the lock of a database whose tables are being made. It ends with the transaction, also behind a pool."""

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    if context.get_context().dialect.name == "postgresql":  # one that starts meanwhile waits, and finds the tables made
        context.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
    context.run_migrations()
