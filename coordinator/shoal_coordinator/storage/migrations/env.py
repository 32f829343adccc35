"""Run by alembic: migrate over the connection that the coordinator hands in."""

from __future__ import annotations

from alembic import context

from shoal_coordinator.storage.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
