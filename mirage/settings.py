"""Every setting that the environment can change, in one place.

| variable | meaning | default |
| --- | --- | --- |
| `MIRAGE_CACHE_DIR` | folder of the results store, checkpoints and compiled kernels | the user's cache folder |
| `MIRAGE_CACHE_URL` | SQLAlchemy URL of a results store to share | SQLite in the cache folder |
| `MIRAGE_NUM_THREADS` | threads of a CPU kernel | the CPUs that this process may use |
| `MIRAGE_SEARCH_WORKERS` | processes that compile kernels for CUDA | the CPUs that this process may use |
| `MIRAGE_CFLAGS` | flags appended to the C compiler's | none |
| `MIRAGE_PRINT_AFTER` | passes of the graph compiler, by commas, after which the module is printed; or `all` | none |
| `MIRAGE_LOG` | what of models of PyTorch is told on stderr, by commas: `graphs`, `fallbacks`, `recompiles` | none |
| `CC` | C compiler | first of cc, gcc, clang, ziglang |
"""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_dir

from mirage.errors import MirageError, SettingError

#: what `MIRAGE_LOG` may name
LOGS = ("graphs", "fallbacks", "recompiles")


def cache_dir() -> Path:
    """Folder of the results store and of compiled kernels; not created here."""
    return Path(os.environ.get("MIRAGE_CACHE_DIR") or user_cache_dir("mirage"))


def cache_url() -> str | None:
    """SQLAlchemy URL of the results store, or None for the SQLite file in `cache_dir()`."""
    return os.environ.get("MIRAGE_CACHE_URL") or None


def extra_cflags() -> list[str]:
    """Flags appended to the C compiler's."""
    return os.environ.get("MIRAGE_CFLAGS", "").split()


def num_threads() -> int:
    """Threads of a CPU kernel.

    Raises MirageError if `MIRAGE_NUM_THREADS` is not a positive integer.
    """
    return _count("MIRAGE_NUM_THREADS", "thread")


def search_workers() -> int:
    """Processes that compile kernels for CUDA.

    Raises MirageError if `MIRAGE_SEARCH_WORKERS` is not a positive integer.
    """
    return _count("MIRAGE_SEARCH_WORKERS", "process")


def print_after() -> tuple[str, ...]:
    """Names of the passes after which the graph compiler prints the module; ("all",) for every one."""
    return tuple(filter(None, (name.strip() for name in os.environ.get("MIRAGE_PRINT_AFTER", "").split(","))))


def logs() -> tuple[str, ...]:
    """What of models of PyTorch is told on stderr.

    Raises SettingError for a name that `MIRAGE_LOG` does not know.
    """
    names = tuple(filter(None, (name.strip() for name in os.environ.get("MIRAGE_LOG", "").split(","))))
    if unknown := [name for name in names if name not in LOGS]:
        raise SettingError(f"MIRAGE_LOG: {unknown[0]!r} is nothing that is told; name some of {', '.join(LOGS)}, by commas")
    return names


def _count(variable: str, what: str) -> int:
    """A positive number from the environment; by default the CPUs that this process may use."""
    text = os.environ.get(variable)
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text.isdecimal() or int(text) == 0:
        raise MirageError(f"{variable}={text!r} is not a positive integer; set it to a {what} count such as 2")
    return int(text)
