"""`python -m benchmarks.flow`; `race.py` says what it does."""

import typer

from benchmarks.flow.race import main

typer.run(main)
