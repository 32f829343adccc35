"""Labels of versions"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Versions that operators have promoted. Of jobs that were here before, none."""
    op.add_column("jobs", sa.Column("labels", sa.JSON(), nullable=False, server_default="{}"))
