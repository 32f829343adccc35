"""Updates"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """The bodies of small reports; those that came before have files, as large ones do."""
    op.create_table(
        "updates",
        sa.Column("job", sa.String(length=63), nullable=False),
        sa.Column("seq", Number, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_updates_job_jobs")),
        sa.PrimaryKeyConstraint("job", "seq", name=op.f("pk_updates")),
    )
