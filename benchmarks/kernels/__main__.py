"""`python -m benchmarks.kernels`; `race.py` says what it does."""

import typer

from benchmarks.kernels.race import main

typer.run(main)
