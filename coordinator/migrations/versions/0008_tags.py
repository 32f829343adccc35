"""Tags of jobs"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """What people call their jobs by, beside the name. Jobs that were here before have none."""
    op.add_column("jobs", sa.Column("tags", sa.JSON(), nullable=False, server_default="[]"))
