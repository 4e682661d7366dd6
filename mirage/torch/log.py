"""What is told while models are compiled and run, by the names that `MIRAGE_LOG` has."""

from __future__ import annotations

import logging
import sys

from mirage.settings import LOGS, logs

#: graphs: each program that is made; fallbacks: operators and calls that run in torch, and why; recompiles: why there is another
#: program than the first
GRAPHS, FALLBACKS, RECOMPILES = (logging.getLogger(f"mirage.torch.{name}") for name in LOGS)


def print_logs() -> None:
    """Print what `MIRAGE_LOG` names to stderr; raises SettingError for a name that it does not know."""
    handler: logging.Handler | None = None
    for name in logs():
        logger = logging.getLogger(f"mirage.torch.{name}")
        if not any(isinstance(h, _Stderr) for h in logger.handlers):
            handler = handler or _Stderr(sys.stderr)
            handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
            logger.propagate = False


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """A handler of ours, to be added once."""
