"""Logs"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """What nodes and the coordinator log."""
    op.create_table(
        "logs",
        sa.Column("id", Number, autoincrement=True, nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("node", sa.String(length=63), nullable=False),
        sa.Column("job", sa.String(length=63), nullable=False),
        sa.Column("round", Number, nullable=True),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("fields", sa.JSON(), nullable=False),
        sa.Column("boot", sa.String(length=16), nullable=False),
        sa.Column("number", Number, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_logs")),
        sa.UniqueConstraint("node", "boot", "number", name=op.f("uq_logs_node_boot_number")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_logs_job_id"), "logs", ["job", "id"])
    op.create_index(op.f("ix_logs_node_id"), "logs", ["node", "id"])
