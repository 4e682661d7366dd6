"""Migrations of the results store's tables: revisions for Alembic, which runs them when an older store is opened."""
