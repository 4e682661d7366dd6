"""`python -m benchmarks.gpu`; `kernels.py` says what it does."""

import typer

from benchmarks.gpu.kernels import main

typer.run(main)
