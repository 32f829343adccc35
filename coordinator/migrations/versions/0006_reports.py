"""Reports"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """What each counted report said, and how long it took. Of reports from before nothing is known."""
    op.create_table(
        "reports",
        sa.Column("id", Number, autoincrement=True, nullable=False),
        sa.Column("job", sa.String(length=63), nullable=False),
        sa.Column("seq", Number, nullable=False),
        sa.Column("node", sa.String(length=63), nullable=False),
        sa.Column("order", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("version", Number, nullable=False),
        sa.Column("round", Number, nullable=True),
        sa.Column("staleness", Number, nullable=False),
        sa.Column("weight", sa.Float(), nullable=False),
        sa.Column("norm", sa.Float(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("now", sa.Float(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        *(
            sa.Column(name, sa.Float(), nullable=True)
            for name in ("seconds", "wait_s", "download_s", "train_s", "upload_s", "fold_s")
        ),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_reports_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reports")),
        sa.UniqueConstraint("job", "seq", name=op.f("uq_reports_job_seq")),
        sqlite_autoincrement=True,
    )
    for columns in (["job", "node", "id"], ["job", "round"], ["node", "id"]):
        op.create_index(op.f(f"ix_reports_{'_'.join(columns)}"), "reports", columns)
