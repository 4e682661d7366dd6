"""`python -m benchmarks.compiler`; `race.py` says what it does."""

import typer

from benchmarks.compiler.race import main

typer.run(main)
