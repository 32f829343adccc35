"""Nodes as peers"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Whom a job's nodes may trust while they carry it on. Nodes that were here before have shown no key yet."""
    op.add_column("nodes", sa.Column("peer", sa.JSON(), nullable=True))
    op.create_table(
        "revoked_keys",
        sa.Column("peer_id", sa.String(length=20), nullable=False),
        sa.Column("node", sa.String(length=63), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("peer_id", name=op.f("pk_revoked_keys")),
    )
    op.create_table(
        "papers",
        sa.Column("job", sa.String(length=63), nullable=False),
        sa.Column("version", Number, nullable=False),
        sa.Column("charter", sa.String(), nullable=False),
        sa.Column("roster", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_papers_job")),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_papers")),
    )
    op.create_table(
        "gossip_bytes",
        sa.Column("job", sa.String(length=63), nullable=False),
        sa.Column("node", sa.String(length=63), nullable=False),
        sa.Column("boot", Number, nullable=False),
        sa.Column("exchanges", Number, nullable=False),
        sa.Column("sent", Number, nullable=False),
        sa.Column("received", Number, nullable=False),
        sa.PrimaryKeyConstraint("job", "node", name=op.f("pk_gossip_bytes")),
    )
