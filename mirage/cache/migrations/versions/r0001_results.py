"""Records alone: what stores were before their tables had a version."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """A store without a version has the table already."""
    op.create_table(
        "mirage_results",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("program", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("dtype", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("created", sa.Text, nullable=False),
        sa.Column("best_us", sa.Float(53)),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("payload_sha256", sa.String(64), nullable=False),
        if_not_exists=True,
    )
