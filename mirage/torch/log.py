"""What is told while models are compiled and run, by the names that `MIRAGE_LOG` has."""

from __future__ import annotations

import logging

from mirage.settings import TORCH_LOGS

#: graphs: each program that is made; fallbacks: operators and calls that run in torch, and why; recompiles: why there is another
#: program than the first
GRAPHS, FALLBACKS, RECOMPILES = (logging.getLogger(f"mirage.torch.{name}") for name in TORCH_LOGS)
