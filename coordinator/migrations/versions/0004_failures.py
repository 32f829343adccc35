"""Failures"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Orders that were not done. Of those before, only the notes tell."""
    op.create_table(
        "failures",
        sa.Column("id", Number, autoincrement=True, nullable=False),
        sa.Column("job", sa.String(length=63), nullable=False),
        sa.Column("node", sa.String(length=63), nullable=False),
        sa.Column("order", sa.String(length=40), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("version", Number, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("error", sa.String(), nullable=False),
        sa.Column("traceback", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("outcome_why", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_failures_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_failures")),
        sa.UniqueConstraint("job", "node", "order", name=op.f("uq_failures_job_node_order")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_failures_node_id"), "failures", ["node", "id"])
