"""The revisions, oldest first; `REVISIONS` of `mirage/cache/sqlite.py` lists them."""
