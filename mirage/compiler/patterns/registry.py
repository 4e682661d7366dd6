"""Pairs of a pattern and the library function that computes what it matches; users add their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mirage.compiler.patterns.language import Match, Pattern
from mirage.errors import PatternError
from mirage.runtime.packed import register_library

Check = Callable[[Match], bool]
Attributes = Callable[[Match], Mapping[str, Any]]


@dataclass(frozen=True)
class Rule:
    """A registered pair.

    A match becomes a call of the library function `function` with the operands named `inputs`, those that an optional part
    left out excepted, and the attributes that `attributes` gives. `check` may refuse a match. Rules of higher priority come
    first, those of one priority in the order of registration. A rule of a `package` is for modules that ask for it: programs
    that came from there, so that it is installed; one named as a target is for programs that came from no package.
    """

    name: str
    pattern: Pattern
    function: str
    inputs: tuple[str, ...]
    check: Check | None = None
    attributes: Attributes | None = None
    priority: int = 0
    package: str = ""
    late: bool = False


def same_attributes(call: str, *names: str) -> Attributes:
    """What gives a library function these attributes of a captured application."""
    return lambda m: {name: m.attr(call, name) for name in names}


_rules: dict[str, Rule] = {}
_lock = threading.Lock()


def register_pattern(
    name: str,
    pattern: Pattern,
    library_function: str | Callable[..., None],
    check: Check | None = None,
    *,
    priority: int = 0,
    inputs: Sequence[str] | None = None,
    attributes: Attributes | None = None,
    package: str = "",
    late: bool = False,
) -> Rule:
    """Compute what a pattern matches by a library function from now on (Relax, section 4.6).

    `library_function` is called as `fn(inputs, outputs, **attrs)`, as `mirage.runtime.packed.register_library` says: the name
    of a registered one, or the function, which is registered as `name`. `inputs` orders the captured operands; by default
    they come in the order of the pattern. `check(match)` refuses what the pattern cannot say; `attributes(match)` gives the
    function's keyword arguments: numbers, strings, dims and tuples of them. With a `package`, only modules whose main
    function says `@attrs(packages=package)` use it, before the search sees them, or `late`, after it.

    Raises PatternError if the name is taken, or an input is not captured, and DuplicateFunction.
    """
    captured = pattern.names()
    wanted = captured if inputs is None else tuple(inputs)
    for n in wanted:
        if n not in captured:
            raise PatternError(f"pattern {name!r}: input {n!r} is not captured; it captures {', '.join(captured)}")
    with _lock:
        if name in _rules:
            raise PatternError(f"pattern {name!r} is registered already; use another name")
        if not isinstance(library_function, str):
            register_library(name, library_function)
        function = library_function if isinstance(library_function, str) else name
        rule = Rule(name, pattern, function, wanted, check, attributes, priority, package, late)
        _rules[name] = rule
    return rule


def rules(packages: Collection[str] = ("",), late: bool = False) -> list[Rule]:
    """The registered pairs of these packages, by default those of none, in the order in which they are tried: those that are
    `late`, or the others.
    """
    with _lock:
        found = [r for r in _rules.values() if r.package in packages and r.late == late]
    return sorted(found, key=lambda r: -r.priority)
