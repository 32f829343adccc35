"""Owners"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Which of several coordinators owns a job; empty: the lead, whoever that is."""
    op.add_column("jobs", sa.Column("owner", sa.String(length=63), nullable=False, server_default=""))
