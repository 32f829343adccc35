"""Scores of versions"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

SHOWN_FROM = ("eval/accuracy", "held_out/accuracy")


def upgrade() -> None:
    """Find the best and the newest measured version of a job by an index."""
    op.add_column("versions", sa.Column("score", sa.Float()))
    op.add_column("versions", sa.Column("measured", sa.Boolean(), nullable=False, server_default=sa.false()))
    table = sa.table(
        "versions",
        sa.column("job", sa.String),
        sa.column("number", sa.BigInteger),
        sa.column("metrics", sa.JSON),
        sa.column("score", sa.Float),
        sa.column("measured", sa.Boolean),
    )
    connection = op.get_bind()
    for job, number, metrics in connection.execute(sa.select(table.c.job, table.c.number, table.c.metrics)).all():
        told = [metrics[name] for name in SHOWN_FROM if isinstance(metrics.get(name), int | float)]
        here = (table.c.job == job, table.c.number == number)
        values = {"score": told[0] if told else None, "measured": bool(metrics)}
        connection.execute(sa.update(table).where(*here).values(**values))
    for column in ("score", "measured"):
        op.create_index(op.f(f"ix_versions_job_{column}_number"), "versions", ["job", column, "number"])
    op.create_index(op.f("ix_versions_job_digest"), "versions", ["job", "digest"])
