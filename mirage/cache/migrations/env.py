"""What Alembic runs to migrate: the caller's connection, in the caller's transaction."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], version_table="mirage_schema")
context.run_migrations()
