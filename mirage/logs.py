"""What is logged: standard `logging` under the logger `mirage`, and printed to stderr where `MIRAGE_LOG` asks for it.

Modules log to `logging.getLogger("mirage.<part>")`, with figures as `extra=`, which the JSON form shows as members of their own.
Nothing is configured at import, and the root logger never: an application that has handlers of its own gets the records through
these. `configure` is called where a call of the library begins.

Python warnings stay warnings: what a caller can act on is a `MirageWarning`; everything else that happens is logged.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from mirage import settings
from mirage.progress import Say

#: attributes of any record; what else a record has was given as `extra`
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

_applied: dict[str, str] = {}


class JsonLines(logging.Formatter):
    """A record as one JSON object on a line: time (ISO 8601, UTC), level, logger, message, and what was given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        row: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        row |= {k: v for k, v in vars(record).items() if k not in _PLAIN and k not in row}
        if record.exc_info:
            row["exception"] = self.formatException(record.exc_info)
        return json.dumps(row, default=str)


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """The handler of ours: it writes to what `sys.stderr` is when a record comes."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


_HANDLER = _Stderr()


def configure() -> None:
    """Print what `MIRAGE_LOG` and `MIRAGE_PRINT_AFTER` name to stderr, in the form of `MIRAGE_LOG_FORMAT`; nothing where they are
    unset.

    To be called where a call of the library begins; costs nothing where nothing changed. Levels that an application set are left
    alone, but for the loggers that are named. Raises SettingError for what these settings cannot be.
    """
    wanted: dict[str, str] = dict(settings.log())
    if settings.print_after():
        wanted.setdefault("mirage.compiler.passes", "info")
    is_json = settings.log_format() == "json"
    _HANDLER.setFormatter(JsonLines() if is_json else logging.Formatter("%(name)s: %(message)s"))
    if wanted == _applied:
        return
    for name in _applied:
        logging.getLogger(name).setLevel(logging.NOTSET)
    _applied.clear()
    _applied.update(wanted)
    for name, level in wanted.items():
        logging.getLogger(name).setLevel(level.upper())
    top = logging.getLogger("mirage")
    if wanted:
        top.addHandler(_HANDLER)
    else:
        top.removeHandler(_HANDLER)
    # an application with handlers of its own would print each line twice
    top.propagate = not wanted


def told(progress: Say | None, logger: logging.Logger) -> Say:
    """Gets lines of progress, for `progress` and, at the level of debugging, for the log."""

    def say(line: str) -> None:
        logger.debug("%s", line)
        if progress is not None:
            progress(line)

    return say
