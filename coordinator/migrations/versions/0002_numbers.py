"""Numbers of a version"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """What the schedule keeps from a version on; of versions that were made before, nothing is known."""
    op.add_column("versions", sa.Column("numbers", sa.JSON(), nullable=False, server_default="{}"))
