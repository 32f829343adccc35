"""First tables"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _people()
    _jobs()
    _journals()
    _books()


def _people() -> None:
    """Who may ask, with what."""
    op.create_table(
        "nodes",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("secret", sa.String(length=64), nullable=False),
        sa.Column("joined_at", sa.Float(), nullable=False),
        sa.Column("seen_at", sa.Float(), nullable=False),
        sa.Column("info", sa.JSON(), nullable=False),
        sa.Column("revoked", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_nodes")),
        sa.UniqueConstraint("secret", name=op.f("uq_nodes_secret")),
    )
    op.create_table(
        "tokens",
        sa.Column("secret", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=True),
        sa.Column("uses", sa.Integer(), nullable=False),
        sa.Column("grants", sa.String(length=16), nullable=True),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("secret", name=op.f("pk_tokens")),
    )


def _jobs() -> None:
    """The jobs, and what was made of them."""
    op.create_table(
        "jobs",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("start", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("summary", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_jobs")),
    )
    op.create_table(
        "versions",
        sa.Column("job", sa.String(length=63), nullable=False),
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("nbytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("why", sa.String(), nullable=False),
        sa.Column("opened", sa.Float(), nullable=False),
        sa.Column("closed", sa.Float(), nullable=False),
        sa.Column("closed_at", sa.Float(), nullable=False),
        sa.Column("weight", sa.Float(), nullable=False),
        sa.Column("asked", sa.Integer(), nullable=False),
        sa.Column("reports", sa.JSON(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_versions_job")),
        sa.PrimaryKeyConstraint("job", "number", name=op.f("pk_versions")),
    )


def _journals() -> None:
    """What happened in each job, and from where it is fed again."""
    op.create_table(
        "events",
        sa.Column("job", sa.String(length=63), nullable=False),
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("now", sa.Float(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("event", sa.JSON(), nullable=False),
        sa.Column("aside", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_events_job")),
        sa.PrimaryKeyConstraint("job", "seq", name=op.f("pk_events")),
    )
    op.create_table(
        "snapshots",
        sa.Column("job", sa.String(length=63), nullable=False),
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("now", sa.Float(), nullable=False),
        sa.Column("state", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_snapshots_job")),
        sa.PrimaryKeyConstraint("job", "seq", name=op.f("pk_snapshots")),
    )


def _books() -> None:
    """What people are told, and the bytes that it took."""
    op.create_table(
        "feed",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job", sa.String(length=63), nullable=False),
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("topic", sa.String(length=16), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_feed_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_feed")),
        sa.UniqueConstraint("job", "seq", "part", name=op.f("uq_feed_job_seq_part")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("feed", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_feed_job_topic_id"), ["job", "topic", "id"], unique=False)
    op.create_table(
        "traffic",
        sa.Column("job", sa.String(length=63), nullable=False),
        sa.Column("version", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("node", sa.String(length=63), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("direction", sa.String(length=4), nullable=False),
        sa.Column("requests", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("head_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("body_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.PrimaryKeyConstraint("job", "version", "node", "kind", "direction", name=op.f("pk_traffic")),
    )
