"""`python -m benchmarks.search`; `searches.py` says what it does."""

import typer

from benchmarks.search.searches import main

typer.run(main)
