"""Every setting that the environment can change: one declaration each, which documentation and `mirage settings` are made from.

A setting is called for its value, `num_threads()`, and reads the environment then: a process may change it between two calls.
To add one, declare it below: a name, the variable, how its text is read and what is allowed, the default, a line of help.
"""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from platformdirs import user_cache_dir

from mirage.errors import SettingError, SettingWarning

T = TypeVar("T")
PREFIX = "MIRAGE_"

#: what `MIRAGE_LOG` may name beside `all`: the parts of the package, and what is told of models of PyTorch
PARTS = ("cache", "compiler", "kernels", "search", "torch", "verify")
TORCH_LOGS = ("graphs", "fallbacks", "recompiles")
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


@dataclass(frozen=True)
class Setting(Generic[T]):
    """A setting: the environment variable that has it, and how its text becomes a value.

    `parse` raises ValueError for a text that is not `allowed`. A variable that is unset or empty has the `default`, which
    `default_help` says in words. `example` is a text that `parse` takes.
    """

    variable: str
    parse: Callable[[str], T]
    default: Callable[[], T]
    allowed: str
    example: str
    help: str
    default_help: str = "none"

    def __call__(self) -> T:
        """The value; raises SettingError for a text that is not allowed."""
        text = os.environ.get(self.variable)
        if not _checked:
            warn_of_unknown()
        if not text:
            return self.default()
        try:
            return self.parse(text)
        except ValueError as e:
            why = f" ({e})" if str(e) else ""
            raise SettingError(
                f"{self.variable}={text!r} is not {self.allowed}{why}; for example {self.example} is; or unset it"
            ) from None

    @property
    def origin(self) -> str:
        """Where the value is from: `environment` or `default`."""
        return "environment" if os.environ.get(self.variable) else "default"


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) == 0:
        raise ValueError
    return int(text)


def _limit(text: str) -> float:
    if not (found := float(text)) > 0:
        raise ValueError
    return int(found) if found.is_integer() else found


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as e:
        raise ValueError(str(e)) from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def _words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))


def _logs(text: str) -> dict[str, str]:
    found = {}
    for one in _names(text):
        name, colon, level = one.partition(":")
        if colon and level not in LEVELS:
            raise ValueError(f"{level!r} is no level")
        if name not in (*PARTS, *TORCH_LOGS, "all"):
            raise ValueError(f"{name!r} is nothing that is logged")
        logger = "mirage" if name == "all" else f"mirage.torch.{name}" if name in TORCH_LOGS else f"mirage.{name}"
        found[logger] = level or "info"
    return found


def _format(text: str) -> str:
    if text not in FORMATS:
        raise ValueError
    return text


def _cpus() -> int:
    """The CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


cache_dir = Setting(
    "MIRAGE_CACHE_DIR",
    parse=_path,
    default=lambda: Path(user_cache_dir("mirage")),
    allowed="a path",
    example="/var/tmp/mirage",
    help="folder of the results store, checkpoints and compiled kernels; it is made when it is first written to",
    default_help="the user's cache folder",
)
cache_url = Setting[str | None](
    "MIRAGE_CACHE_URL",
    parse=str,
    default=lambda: None,
    allowed="a SQLAlchemy URL",
    example="sqlite:////var/tmp/results.sqlite",
    help="SQLAlchemy URL of a results store to share",
    default_help="SQLite in the cache folder",
)
cache_max_bytes = Setting(
    "MIRAGE_CACHE_MAX_BYTES",
    parse=_limit,
    default=lambda: 4 * 2**30,
    allowed="a positive number",
    example="1e9",
    help="bytes of records in the results store, beyond which those used longest ago are removed; or `inf`",
    default_help="4 GiB",
)
cache_max_days = Setting(
    "MIRAGE_CACHE_MAX_DAYS",
    parse=_limit,
    default=lambda: 365,
    allowed="a positive number",
    example="30",
    help="days after which a record in the results store that nobody used is removed; or `inf`",
    default_help="365",
)
num_threads = Setting(
    "MIRAGE_NUM_THREADS",
    parse=_positive,
    default=_cpus,
    allowed="a positive integer",
    example="2",
    help="threads of a CPU kernel",
    default_help="the CPUs that this process may use",
)
search_workers = Setting(
    "MIRAGE_SEARCH_WORKERS",
    parse=_positive,
    default=_cpus,
    allowed="a positive integer",
    example="2",
    help="processes that compile kernels for CUDA",
    default_help="the CPUs that this process may use",
)
compiler = Setting[tuple[str, ...]](
    "CC",
    parse=_words,
    default=tuple,
    allowed="a command line",
    example="gcc",
    help="C compiler, with its own flags if need be",
    default_help="first of cc, gcc, clang, ziglang",
)
extra_cflags = Setting[tuple[str, ...]](
    "MIRAGE_CFLAGS",
    parse=_words,
    default=tuple,
    allowed="a list of flags as a shell reads them",
    example="'-O1 -g'",
    help="flags appended to the C compiler's",
)
print_after = Setting[tuple[str, ...]](
    "MIRAGE_PRINT_AFTER",
    parse=_names,
    default=tuple,
    allowed="a list of passes",
    example="partition,fuse",
    help="passes of the graph compiler, by commas, after which the module is printed; or `all`",
)
log = Setting[dict[str, str]](
    "MIRAGE_LOG",
    parse=_logs,
    default=dict,
    allowed=f"NAME or NAME:LEVEL, by commas; names are {', '.join((*TORCH_LOGS, *PARTS, 'all'))}, levels {', '.join(LEVELS)}",
    example="search:debug,graphs",
    help="what is logged to stderr, by commas: parts of the package, `graphs`, `fallbacks` or `recompiles` of models of "
    "PyTorch, or `all`; each with a level, as in `search:debug`, or from `info` on",
    default_help="warnings",
)
log_format = Setting(
    "MIRAGE_LOG_FORMAT",
    parse=_format,
    default=lambda: "text",
    allowed="text or json",
    example="json",
    help="form of what is logged: lines of text, or one JSON object per line",
    default_help="text",
)
upstream_mugraphs = Setting[Path | None](
    "MIRAGE_UPSTREAM_MUGRAPHS",
    parse=_path,
    default=lambda: None,
    allowed="a path",
    example="results",
    help="folder of graphs that the upstream project stored, which some of the tests read",
)

#: every setting, by the name under which this module declares it
SETTINGS: Mapping[str, Setting[object]] = {name: one for name, one in globals().items() if isinstance(one, Setting)}

_checked: list[str] = []


def unknown_variables() -> dict[str, str]:
    """Variables of the environment that begin as ours do and are no setting; for each the nearest that is one."""
    known = {one.variable for one in SETTINGS.values()}
    unknown = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
    if not unknown:
        return {}
    from difflib import get_close_matches

    return {name: get_close_matches(name, sorted(known), n=1, cutoff=0.0)[0] for name in unknown}


def warn_of_unknown() -> None:
    """Warn of every unknown variable, once in a process, and not again in the processes that it starts."""
    if _checked:
        return
    _checked.append("done")
    if not (unknown := unknown_variables()):
        return
    from multiprocessing import parent_process

    if parent_process() is None:
        for name, nearest in unknown.items():
            text = f"{name} is no setting and changes nothing; the nearest is {nearest}; `mirage settings` lists them"
            warnings.warn(text, SettingWarning, stacklevel=3)


def markdown() -> str:
    """The settings as a table for the documentation."""
    rows = [f"| `{one.variable}` | {one.help} | {one.default_help} |" for one in SETTINGS.values()]
    return "\n".join(["| variable | meaning | default |", "| --- | --- | --- |", *rows])
