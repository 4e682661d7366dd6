"""Random edits of saved executables, tried in a process that may die of them."""

from __future__ import annotations

import json
import random
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import mirage as mi
from mirage.errors import MirageError
from tests import forks
from tests.api.archives import members, write
from tests.api.small import PATIENCE

#: memory of the process that tries edits: what an edit asks for beyond it is refused, as on a machine that has no more
_MEMORY = 8 << 30
#: what a number becomes, or a name: what arithmetic, ranges and addresses may be led astray by
_NUMBERS = (0, 1, -1, 2, 3, 4, 7, 8, 64, 100, -4, 1 << 31, 10**12, (1 << 63) - 1, 1 << 64)
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d+(?:\.\d+)?|//|<=|>=|[-+*/%<>]")
#: characters of a text that is more than a name
_LONG = 60
_OPERATORS = ("+", "-", "*", "//", "/", "%", "<", "<=", ">")


def edited(head: Any, rng: random.Random) -> tuple[Any, tuple[Any, ...], str]:
    """The code of an executable with one number, name or operator changed, where that is, and what was changed.

    `facts`, which are words for people, stay.
    """
    places = [(path, value) for path, value in _leaves(head, ()) if path[0] != "facts"]
    # a kernel's text is one leaf, and most of the file
    texts = [p for p in places if isinstance(p[1], str) and len(p[1]) > _LONG]
    names = [v for _, v in places if isinstance(v, str) and len(v) <= _LONG]
    path, value = rng.choice(texts if texts and rng.random() < 0.5 else places)
    new = value
    while type(new) is type(value) and new == value:
        new = _changed(value, names, rng)
    return _with(head, path, new), path, f"{path}: {_shown(value, new)}"


def _leaves(data: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else None
    if items is None:
        yield path, data
        return
    for key, value in items:
        yield from _leaves(value, (*path, key))


def _with(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[path[0]] = _with(data[path[0]], path[1:], value)
    return copy


def _changed(value: Any, names: list[str], rng: random.Random) -> Any:
    match value:
        case bool() | None:
            return rng.choice([True, False, None, 1])
        case int():
            return rng.choice([n for n in (*_NUMBERS, value + 1, value - 1, 2 * value) if n != value])
        case str() if tokens := list(_TOKEN.finditer(value)):
            token = rng.choice(tokens)
            old = token.group()
            if old[0].isdigit():
                new = str(rng.choice(_NUMBERS))
            elif old[0].isalpha() or old[0] == "_":
                # another name of the same text, most often
                others = [t.group() for t in tokens if t.group()[0].isalpha()] if rng.random() < 0.8 else names
                new = rng.choice(others or [f"{old} + 100"])
            else:
                new = rng.choice(_OPERATORS)
            if rng.random() < 0.2 and old[0].isalnum():
                new = f"{old} {rng.choice(_OPERATORS)} {rng.choice(_NUMBERS)}"
            return value[: token.start()] + new + value[token.end() :]
    return rng.choice(_NUMBERS)


def _shown(old: Any, new: Any) -> str:
    if not (isinstance(old, str) and isinstance(new, str)) or len(old) <= _LONG:
        return f"{old!r} -> {new!r}"
    at = next((k for k, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
    return f"...{old[max(at - 20, 0) : at + 30]!r} -> {new[max(at - 20, 0) : at + 30]!r}"


@dataclass
class Case:
    """A saved executable, the arguments of some calls and their results."""

    file: Path
    calls: list[tuple[list[Any], tuple[np.ndarray, ...]]]


def outcome(file: Path, case: Case) -> str:
    """What became of loading a file and calling it: "refused", "right", "other" results, or an error that is not one of ours."""
    try:
        executable = mi.load_executable(file)
        for arguments, wanted in case.calls:
            found = executable(*[a.copy() if isinstance(a, np.ndarray) else a for a in arguments])
            results = found if isinstance(found, tuple) else (found,)
            if len(results) != len(wanted) or not all(map(_same, results, wanted)):
                return "other"
    except MirageError:
        return "refused"
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return "right"


def _same(found: Any, wanted: np.ndarray) -> bool:
    if not isinstance(found, np.ndarray) or found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    return bool(np.allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=1e-3, atol=1e-3, equal_nan=True))


@dataclass(frozen=True)
class Edit:
    """An edit of the code of a file, in its `part`, in words, and its outcome: that of `outcome`, "crash" or "hang"."""

    file: Path
    code: bytes
    part: str
    what: str
    found: str


class Trials:
    """Tries edited files in a process beside, which is started again after it died or hung."""

    def __init__(self, cases: list[Case], folder: Path) -> None:
        self.cases = cases
        self.file = folder / "edited.mirage"
        self.codes = [members(c.file) for c in cases]
        self.heads = [json.loads(c["executable.json"]) for c in self.codes]
        self._start()

    def _start(self) -> None:
        self._pipe, theirs = forks.context().Pipe()
        self.process = forks.context().Process(target=_worker, args=(theirs, self.cases), daemon=True)
        self.process.start()
        theirs.close()

    def stop(self) -> None:
        self.process.kill()
        self.process.join()

    def edit(self, seed: int) -> Edit:
        """One edit, and what became of it; the digest of the file is made anew."""
        rng = random.Random(f"edit {seed}")
        k = rng.randrange(len(self.cases))
        head, path, what = edited(self.heads[k], rng)
        code = json.dumps(head).encode()
        write(self.file, self.codes[k] | {"executable.json": code})
        return Edit(self.cases[k].file, code, str(path[0]), f"{self.cases[k].file.stem}, {what}", self.outcome(k))

    def outcome(self, k: int) -> str:
        """What became of `file`, edited from that of case k."""
        try:
            self._pipe.send((self.file, k))
            found = str(self._pipe.recv()) if self._pipe.poll(PATIENCE) else "hang"
        except (EOFError, BrokenPipeError, ConnectionResetError):
            found = "crash"
        if found in ("hang", "crash"):
            self.stop()
            self._start()
        return found


def _worker(pipe: Connection, cases: list[Case]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    while True:
        file, k = pipe.recv()
        pipe.send(outcome(file, cases[k]))
