"""Leases"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Who alone may write, where a lock on a file cannot say so."""
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("epoch", Number, nullable=False),
        sa.Column("holder", sa.String(length=63), nullable=False),
        sa.Column("until", sa.Float(), nullable=False),
        sa.Column("commits", Number, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
