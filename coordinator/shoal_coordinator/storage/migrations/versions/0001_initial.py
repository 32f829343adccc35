"""Create all tables.

Nothing has been released, so there is one migration and it makes what `tables.py` says. From the first release on,
this file has to stand as it was released, and each change of the tables gets a migration of its own.
"""

from __future__ import annotations

from alembic import op

from shoal_coordinator.storage.tables import metadata

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    metadata.create_all(op.get_bind())
