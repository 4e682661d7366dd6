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
SCHEMA = 2


@dataclass(frozen=True)
class Draw:
    """Random tests at one set of axis sizes. `k` and `d` are those of Theorem 2, `error` the bound reached.

    `k`, `d` and `error` are None where the theorem gives no bound. `redrawn` tests divided by zero and do not count.
    Where functions are applied to results of exp, `pairs` of their arguments may differ, each by `argument_k` terms, and
    the bound counts these too.
    """

    sizes: Mapping[str, int]
    tests: int
    redrawn: int
    k: int | None
    d: int | None
    error: float | None
    pairs: int = 0
    argument_k: int = 0


@dataclass(frozen=True)
class Check:
    """Random tests with one seed and one pair of primes, p and q with q | p - 1 (Mirage, section 5.2).

    `counterexample` says in words which test told the graph from the program; "" where none did.
    """

    seed: int
    p: int
    q: int
    draws: tuple[Draw, ...]
    counterexample: str

    @property
    def equal(self) -> bool:
        """Whether no test told them apart."""
        return not self.counterexample

    @property
    def tests(self) -> int:
        """Number of random tests."""
        return sum(d.tests for d in self.draws)

    @property
    def error_bound(self) -> float | None:
        """Probability, over the random values, that a graph which differs from the program at the sizes of any
        draw passes that draw's tests; None where no bound is known, or a test failed.
        """
        errors = [d.error for d in self.draws if d.error is not None]
        return max(errors, default=None) if self.equal and len(errors) == len(self.draws) else None


@dataclass(frozen=True)
class Certificate:
    """The evidence for or against a graph's equivalence to its program.

    - `checks`: the random tests. A graph that a fresh search returns has two, with primes and seeds of their own; one that is
      only proved, or was recalled and is proved anew, may have none.
    - `delta`: the error probability that each draw of each check was to reach.
    - `proof`: whether a symbolic proof for all sizes was found ("not proved" is never "wrong").
    - `safe_maximum`: whether running maxima keep the exponents in range; `maximum_reason` says why not.
    - `factor_tests`: random tests in which a common factor on every exp of a row scaled every tensor as running
      maxima need it, and left the outputs as they are; 0 where there is no such exp, or it was not tried.
    - `lax`: whether Theorem 2 covers the program and the graph without random functions.
    """

    checks: tuple[Check, ...]
    delta: float
    proof: Proof
    safe_maximum: bool
    maximum_reason: str
    factor_tests: int
    lax: bool
    notes: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether there is evidence, a proof or tests, and no test told them apart."""
        return (bool(self.checks) or self.proof == "proved") and all(c.equal for c in self.checks)

    @property
    def counterexample(self) -> str:
        """Where a test told them apart, in words; "" where none did."""
        return next((c.counterexample for c in self.checks if not c.equal), "")

    @property
    def tests(self) -> int:
        """Number of random tests, over all checks."""
        return sum(c.tests for c in self.checks)

    @property
    def error_bound(self) -> float | None:
        """The largest bound of a check (see there); None where one has none."""
        bounds = [c.error_bound for c in self.checks]
        known = [b for b in bounds if b is not None]
        return max(known, default=None) if len(known) == len(bounds) else None

    def with_proof(self, proof: Proof) -> Certificate:
        """The same certificate after a proof was tried."""
        return dataclasses.replace(self, proof=proof)

    def to_json(self) -> dict[str, Any]:
        """An object of JSON types that `from_json` reads back to an equal certificate."""
        checks = []
        for c in self.checks:
            draws = [{**dataclasses.asdict(d), "sizes": dict(d.sizes)} for d in c.draws]
            checks.append({**dataclasses.asdict(c), "draws": draws, "equal": c.equal, "error_bound": c.error_bound})
        obj = {**dataclasses.asdict(self), "checks": checks, "notes": list(self.notes)}
        return {"schema": SCHEMA, "equal": self.equal, "error_bound": self.error_bound, **obj}

    @staticmethod
    def from_json(obj: Any) -> Certificate:
        """Raises FormatError for anything but what `to_json` writes."""
        if isinstance(obj, dict) and _is_int(obj.get("schema")) and obj["schema"] != SCHEMA:
            raise FormatError(f"certificate: schema {obj['schema']} is not {SCHEMA}; verify the graph again")
        fields = _checked(obj, _CERTIFICATE, "certificate")
        checks = []
        for c in fields.pop("checks"):
            own = _checked(c, _CHECK, "check of a certificate")
            draws = tuple(Draw(**_checked(d, _DRAW, "draw of a certificate")) for d in own["draws"])
            check = Check(own["seed"], own["p"], own["q"], draws, own["counterexample"])
            _agrees(own, check, "check of a certificate")
            checks.append(check)
        derived = {name: fields.pop(name) for name in ("schema", "equal", "error_bound")}
        fields["notes"] = tuple(fields["notes"])
        certificate = Certificate(tuple(checks), **fields)
        _agrees(derived, certificate, "certificate")
        return certificate

    def __str__(self) -> str:
        tested = f"in {self.tests} random tests" if self.checks else "by proof, not tested"
        lines = [f"{'equal' if self.equal else 'NOT EQUAL'} {tested}"]
        for i, c in enumerate(self.checks):
            lines.append(f"  check {i + 1}, modulo p={c.p} and q={c.q}, seed {c.seed}:")
            if c.counterexample:
                lines.append(f"    counterexample: {c.counterexample}")
            for d in c.draws:
                sizes = ", ".join(f"{a}={n}" for a, n in d.sizes.items())
                lines.append(f"    {d.tests} tests at {sizes}: {_bound_text(d)}")
        if self.equal:
            error = self.error_bound
            reached = "no error bound" if error is None else f"error at most {power_text(error)}"
            lines.append(f"  {reached} (asked for {power_text(self.delta)}); proof for all sizes: {self.proof}")
        maximum = "safe" if self.safe_maximum else f"unsafe: {self.maximum_reason}"
        if self.factor_tests:
            maximum += f"; a factor on every exp of a row cancels in {self.factor_tests} random tests"
        lines.append(f"  running maxima: {maximum}")
        lines.extend(f"  note: {n}" for n in self.notes)
        return "\n".join(lines)


def power_text(x: float) -> str:
    """A probability as the next power of 2."""
    return f"2^{math.ceil(math.log2(x))}" if x > 0 else "0"


def _bound_text(d: Draw) -> str:
    if d.error is None:
        return "no bound"
    arguments = f", {d.pairs} pairs of arguments with k={d.argument_k}" if d.pairs else ""
    return f"k={d.k}, d={d.d}{arguments}, error at most {power_text(d.error)}"


Test = Callable[[Any], bool]


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


def _optional(test: Test) -> Test:
    return lambda v: v is None or test(v)


def _list_of(test: Test) -> Test:
    return lambda v: isinstance(v, list) and all(map(test, v))


def _is_object(v: Any) -> bool:
    return isinstance(v, dict)


def _is_sizes(v: Any) -> bool:
    return isinstance(v, dict) and all(_is_str(a) and _is_count(n) for a, n in v.items())


_DRAW: dict[str, Test] = {
    "sizes": _is_sizes,
    "tests": _is_count,
    "redrawn": _is_count,
    "k": _optional(_is_count),
    "d": _optional(_is_count),
    "error": _optional(_is_probability),
    "pairs": _is_count,
    "argument_k": _is_count,
}
_CHECK: dict[str, Test] = {
    "equal": _is_bool,
    "error_bound": _optional(_is_probability),
    "seed": _is_int,
    "p": _is_count,
    "q": _is_count,
    "draws": _list_of(_is_object),
    "counterexample": _is_str,
}
_CERTIFICATE: dict[str, Test] = {
    "schema": _is_int,
    "equal": _is_bool,
    "error_bound": _optional(_is_probability),
    "checks": _list_of(_is_object),
    "delta": _is_probability,
    "proof": lambda v: v in get_args(Proof),
    "safe_maximum": _is_bool,
    "maximum_reason": _is_str,
    "factor_tests": _is_count,
    "lax": _is_bool,
    "notes": _list_of(_is_str),
}


def _checked(obj: Any, fields: Mapping[str, Test], what: str) -> dict[str, Any]:
    if not isinstance(obj, dict) or obj.keys() != fields.keys():
        found = sorted(map(str, obj)) if isinstance(obj, dict) else type(obj).__name__
        raise FormatError(f"{what}: expected the fields {', '.join(sorted(fields))}, got {found}")
    for name, test in fields.items():
        if not test(obj[name]):
            raise FormatError(f"{what}: {name}={obj[name]!r} is not a value of that field")
    return dict(obj)


def _agrees(stated: Mapping[str, Any], evidence: Check | Certificate, what: str) -> None:
    """`equal` and `error_bound` are written for the reader, and follow from the rest."""
    for name in ("equal", "error_bound"):
        if stated[name] != getattr(evidence, name):
            raise FormatError(f"{what}: {name}={stated[name]!r} is not what its tests show; verify the graph again")
