"""Bytes by quarter of an hour"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """What has crossed since a moment. What crossed before this release has no time, and is in no quarter."""
    op.create_table(
        "traffic_quarters",
        sa.Column("at", Number, nullable=False),
        sa.Column("direction", sa.String(length=4), nullable=False),
        sa.Column("bytes", Number, nullable=False),
        sa.PrimaryKeyConstraint("at", "direction", name=op.f("pk_traffic_quarters")),
    )
