"""Replicas"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Where the owner answers, for those that pass requests on to it; and what all of them must have alike."""
    op.add_column("leases", sa.Column("speaks", Number, nullable=False, server_default="0"))
    op.add_column("leases", sa.Column("address", sa.String(), nullable=False, server_default=""))
    op.add_column("leases", sa.Column("secret", sa.String(), nullable=False, server_default=""))
    op.create_table(
        "keepsakes",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_keepsakes")),
    )
