"""Certificates: what was checked of a muGraph, and how sure the answer is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mirage.errors import FormatError

Proof = Literal["proved", "not proved", "not tried"]

#: of the JSON form; another version is refused
SCHEMA = 1


@dataclass(frozen=True)
class Draw:
    """Random tests at one set of axis sizes. `k` and `d` are those of Theorem 2, `error` the bound reached.

    `k`, `d` and `error` are None where the theorem gives no bound.
    """

    sizes: Mapping[str, int]
    tests: int
    redrawn: int
    k: int | None
    d: int | None
    error: float | None


@dataclass(frozen=True)
class Certificate:
    """The evidence for or against a graph's equivalence to its program.

    - `equal`: no test told them apart. `counterexample` says in words where one did.
    - `proof`: whether a symbolic proof for all sizes was found ("not proved" is never "wrong").
    - `error_bound`: probability, over the random values, that a graph which differs from the program at the
      sizes of any draw passes that draw's tests; None where no bound is known. `delta` is what was asked for.
    - `safe_maximum`: whether running maxima keep the exponents in range; `maximum_reason` says why not.
    - `lax`: whether Theorem 2 covers the program and the graph without random functions.
    """

    equal: bool
    seed: int
    p: int
    q: int
    draws: tuple[Draw, ...]
    delta: float
    error_bound: float | None
    counterexample: str
    proof: Proof
    safe_maximum: bool
    maximum_reason: str
    lax: bool
    notes: tuple[str, ...]

    @property
    def tests(self) -> int:
        """Number of random tests."""
        return sum(d.tests for d in self.draws)

    def with_proof(self, proof: Proof) -> Certificate:
        """The same certificate after a proof was tried."""
        return dataclasses.replace(self, proof=proof)

    def to_json(self) -> dict[str, Any]:
        """An object of JSON types that `from_json` reads back to an equal certificate."""
        obj = dataclasses.asdict(self)
        obj["draws"] = [{**dataclasses.asdict(d), "sizes": dict(d.sizes)} for d in self.draws]
        obj["notes"] = list(self.notes)
        return {"schema": SCHEMA, **obj}

    @staticmethod
    def from_json(obj: Any) -> Certificate:
        """Raises FormatError for anything but what `to_json` writes."""
        fields = _checked(obj, {"schema": _is_int, **_FIELDS}, "certificate")
        if fields.pop("schema") != SCHEMA:
            raise FormatError(f"certificate: schema {obj['schema']} is not {SCHEMA}; verify the graph again")
        fields["draws"] = tuple(Draw(**_checked(d, _DRAW, "draw of a certificate")) for d in fields["draws"])
        fields["notes"] = tuple(fields["notes"])
        return Certificate(**fields)

    def __str__(self) -> str:
        verdict = "equal" if self.equal else "NOT EQUAL"
        lines = [f"{verdict} in {self.tests} random tests modulo p={self.p} and q={self.q}, seed {self.seed}"]
        if self.counterexample:
            lines.append(f"  counterexample: {self.counterexample}")
        for d in self.draws:
            sizes = ", ".join(f"{a}={n}" for a, n in d.sizes.items())
            bound = "no bound" if d.error is None else f"k={d.k}, d={d.d}, error at most {_power(d.error)}"
            lines.append(f"  {d.tests} tests at {sizes}: {bound}")
        if self.equal:
            reached = (
                "no error bound" if self.error_bound is None else f"error at most {_power(self.error_bound)}"
            )
            lines.append(f"  {reached} (asked for {_power(self.delta)}); proof for all sizes: {self.proof}")
        lines.append(f"  running maxima: {'safe' if self.safe_maximum else 'unsafe: ' + self.maximum_reason}")
        lines.extend(f"  note: {n}" for n in self.notes)
        return "\n".join(lines)


def _power(x: float) -> str:
    return f"2^{math.ceil(math.log2(x))}" if x > 0 else "0"


Check = Callable[[Any], bool]


def _is_int(v: Any) -> bool:
    return type(v) is int


def _is_count(v: Any) -> bool:
    return type(v) is int and v >= 0


def _is_bool(v: Any) -> bool:
    return type(v) is bool


def _is_str(v: Any) -> bool:
    return type(v) is str


def _is_probability(v: Any) -> bool:
    return type(v) is float and 0 <= v <= 1


def _optional(check: Check) -> Check:
    return lambda v: v is None or check(v)


def _list_of(check: Check) -> Check:
    return lambda v: isinstance(v, list) and all(map(check, v))


def _is_sizes(v: Any) -> bool:
    return isinstance(v, dict) and all(_is_str(a) and _is_count(n) for a, n in v.items())


_DRAW: dict[str, Check] = {
    "sizes": _is_sizes,
    "tests": _is_count,
    "redrawn": _is_count,
    "k": _optional(_is_count),
    "d": _optional(_is_count),
    "error": _optional(_is_probability),
}
_FIELDS: dict[str, Check] = {
    "equal": _is_bool,
    "seed": _is_int,
    "p": _is_count,
    "q": _is_count,
    "draws": _list_of(lambda v: isinstance(v, dict)),
    "delta": _is_probability,
    "error_bound": _optional(_is_probability),
    "counterexample": _is_str,
    "proof": lambda v: v in get_args(Proof),
    "safe_maximum": _is_bool,
    "maximum_reason": _is_str,
    "lax": _is_bool,
    "notes": _list_of(_is_str),
}


def _checked(obj: Any, fields: Mapping[str, Check], what: str) -> dict[str, Any]:
    if not isinstance(obj, dict) or obj.keys() != fields.keys():
        found = sorted(map(str, obj)) if isinstance(obj, dict) else type(obj).__name__
        raise FormatError(f"{what}: expected the fields {', '.join(sorted(fields))}, got {found}")
    for name, check in fields.items():
        if not check(obj[name]):
            raise FormatError(f"{what}: {name}={obj[name]!r} is not a value of that field")
    return dict(obj)
