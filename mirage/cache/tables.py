"""The tables of the results store.

| table | a row |
| --- | --- |
| `mirage_results` | a record: what was found of one program, see `records.py` |
| `mirage_uses` | of each record: its bytes, when it was last read or written, how often it was read |
| `mirage_leases` | a search that goes on: its key, who searches, and until when that holds unless it is renewed |
| `mirage_schema` | the version of these tables, a revision of `migrations/` |

Uses have a table of their own, so that a read does not write a record's whole text again.
"""

from __future__ import annotations

import sqlalchemy as sa

METADATA = sa.MetaData()

RESULTS = sa.Table(
    "mirage_results",
    METADATA,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("program", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("dtype", sa.Text, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("created", sa.Text, nullable=False),
    sa.Column("best_us", sa.Float(53)),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("payload_sha256", sa.String(64), nullable=False),
    # since 0002; releases before it write rows without these
    sa.Column("cut_s", sa.Float(53)),
    sa.Column("family", sa.String(64)),
    sa.Column("processor", sa.Text),
    sa.Index("mirage_results_family", "family"),
)

USES = sa.Table(
    "mirage_uses",
    METADATA,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("used", sa.Float(53), nullable=False),
    sa.Column("hits", sa.BigInteger, nullable=False),
)

LEASES = sa.Table(
    "mirage_leases",
    METADATA,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("expires", sa.Float(53), nullable=False),
)

#: as Alembic defines it
SCHEMA = sa.Table("mirage_schema", METADATA, sa.Column("version_num", sa.String(32), primary_key=True))
