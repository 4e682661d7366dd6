"""The revisions, oldest first; `REVISIONS` of `mirage/cache/tables.py` lists them."""
