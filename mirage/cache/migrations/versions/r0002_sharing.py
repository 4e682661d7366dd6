"""Sharing: how far records are, which of them differ in the processor only, who searches, and what is used."""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Records of before count as complete, and as used now."""
    op.add_column("mirage_results", sa.Column("cut_s", sa.Float(53)))
    op.add_column("mirage_results", sa.Column("family", sa.String(64)))
    op.add_column("mirage_results", sa.Column("processor", sa.Text))
    op.create_index("mirage_results_family", "mirage_results", ["family"])
    op.create_table(
        "mirage_uses",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("used", sa.Float(53), nullable=False),
        sa.Column("hits", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "mirage_leases",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("expires", sa.Float(53), nullable=False),
    )
    op.execute(
        sa.text(
            "INSERT INTO mirage_uses (key, bytes, used, hits) SELECT key, length(payload), :now, 0 FROM mirage_results"
        ).bindparams(now=time.time())
    )
