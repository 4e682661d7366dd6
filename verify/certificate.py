"""Certificates: what was checked of a muGraph, and how sure the answer is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mirage.drawing.show import Displayed
from mirage.errors import VerificationError

Proof = Literal["proved", "not proved", "not tried"]
Verdict = Literal["proved equal", "tested equal", "unknown", "different"]


@dataclass(frozen=True)
class Draw:
    """Random tests with so many elements along each axis. `k` and `d` are those of Theorem 2, `error` the bound reached.

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

    `difference` says in words which test told the graph from the program; "" where none did. Tests take functions for random
    ones, of which nothing else is known: a difference is no counterexample. `uncovered` says for which sizes the tests do not
    speak; "" where they speak for all (see `mirage.verify.support`).
    """

    seed: int
    p: int
    q: int
    draws: tuple[Draw, ...]
    difference: str
    uncovered: str

    @property
    def equal(self) -> bool:
        """Whether no test told them apart."""
        return not self.difference

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
class Certificate(Displayed, drawn_by="mirage.verify.draw"):
    """The evidence for or against a graph's equivalence to its program.

    - `checks`: the random tests. A graph that a fresh search returns has two, with primes and seeds of their own; one that is
      only proved, or was recalled and is proved anew, may have none.
    - `delta`: the error probability that each draw of each check was to reach.
    - `proof`: whether a symbolic proof for all sizes was found, that the two are equal wherever both are defined ("not
      proved" is never "wrong").
    - `condition`: where one of the two is defined and the other may not be, in words that say where they are equal, such as
      "x != 0"; None where both are defined in the same places, or where this was not looked at.
    - `counterexample`: inputs and results in float64 that differ by more than all rounding, in words; "" where none is known.
    - `safe_maximum`: whether running maxima keep the exponents in range; `maximum_reason` says why not.
    - `factor_tests`: random tests in which a common factor on every exp of a row scaled every tensor as running
      maxima need it, and left the outputs as they are; 0 where there is no such exp, or it was not tried.
    - `lax`: whether Theorem 2 covers the program and the graph without random functions.
    - `chain`: the rules by which the program becomes another one that the proof and the checks compare the graph with, each
      with what it replaced by what; without those that arithmetic alone proves.
    """

    checks: tuple[Check, ...]
    delta: float
    proof: Proof
    condition: str | None
    counterexample: str
    safe_maximum: bool
    maximum_reason: str
    factor_tests: int
    lax: bool
    notes: tuple[str, ...]
    chain: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """What the evidence comes to, where `condition` holds.

        "different" takes a counterexample, "proved equal" a proof, and "tested equal" checks of which none found a difference,
        and which speak for all sizes. All else is "unknown": a check found a difference in which a function is taken for a
        random one, or it leaves sizes out.
        """
        if self.counterexample:
            return "different"
        if self.proof == "proved":
            return "proved equal"
        return "tested equal" if self.checks and not self.difference and not self.uncovered else "unknown"

    @property
    def equal(self) -> bool:
        """Whether they are proved or tested equal without a condition: what may stand for the program."""
        return self.verdict in ("proved equal", "tested equal") and self.condition is None

    @property
    def difference(self) -> str:
        """Where a random test told them apart, in words; "" where none did."""
        return next((c.difference for c in self.checks if not c.equal), "")

    @property
    def uncovered(self) -> str:
        """The sizes for which the tests do not speak, in words; "" where they speak for all."""
        return next((c.uncovered for c in self.checks if c.uncovered), "")

    @property
    def reason(self) -> str:
        """Why they are not `equal`, in words; "" where they are."""
        if self.equal:
            return ""
        if self.counterexample:
            return self.counterexample
        if self.verdict == "unknown":
            missing = f"the tests do not speak for {self.uncovered}" if self.uncovered else "neither proved nor tested"
            return self.difference or missing
        return f"equal only where {self.condition}"

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

    def with_proof(self, proof: Proof, condition: str | None = None) -> Certificate:
        """The same certificate after a proof was tried.

        Tests that disagree with a proof are left out where they say nothing: functions were taken for random ones, of which the
        proof knows more, or all tests divided by zero. Raises VerificationError if others disagree, an error of this package.
        """
        if proof != "proved" or not self.difference:
            return dataclasses.replace(self, proof=proof, condition=condition)
        divided = any(d.redrawn and not d.tests for c in self.checks for d in c.draws)
        if self.lax and not divided:
            raise VerificationError(
                f"proved equal, different in a random test: {self.difference}; please report both and the seed"
            )
        why = "all divide by zero" if divided else "they take functions for random ones, of which the proof knows more"
        notes = (*self.notes, f"random tests say nothing: {why}")
        return dataclasses.replace(self, proof=proof, condition=condition, checks=(), notes=notes)

    def with_counterexample(self, counterexample: str) -> Certificate:
        """The same certificate after a counterexample was looked for."""
        return dataclasses.replace(self, counterexample=counterexample)

    def to_json(self) -> dict[str, Any]:
        """The certificate, and what it comes to, as an object of JSON types."""
        checks = []
        for c in self.checks:
            draws = [{**dataclasses.asdict(d), "sizes": dict(d.sizes)} for d in c.draws]
            checks.append({**dataclasses.asdict(c), "draws": draws, "equal": c.equal, "error_bound": c.error_bound})
        obj = {**dataclasses.asdict(self), "checks": checks, "notes": list(self.notes), "chain": list(self.chain)}
        return {name: getattr(self, name) for name in ("verdict", "equal", "error_bound")} | obj

    def __str__(self) -> str:
        lines = [self._headline()]
        for i, c in enumerate(self.checks):
            lines.append(f"  check {i + 1}, modulo p={c.p} and q={c.q}, seed {c.seed}:")
            if c.difference:
                lines.append(f"    difference: {c.difference}")
            for d in c.draws:
                sizes = ", ".join(f"{a}={n}" for a, n in d.sizes.items())
                lines.append(f"    {d.tests} tests at {sizes}: {_bound_text(d)}")
        if self.verdict in ("proved equal", "tested equal"):
            error = self.error_bound
            reached = "no error bound" if error is None else f"error at most {power_text(error)}"
            lines.append(f"  {reached} (asked for {power_text(self.delta)}); proof for all sizes: {self.proof}")
        lines.extend(f"  by the rule {link}" for link in self.chain)
        maximum = "safe" if self.safe_maximum else f"unsafe: {self.maximum_reason}"
        if self.factor_tests:
            maximum += f"; a factor on every exp of a row cancels in {self.factor_tests} random tests"
        lines.append(f"  running maxima: {maximum}")
        lines.extend(f"  note: {n}" for n in self.notes)
        return "\n".join(lines)

    def _headline(self) -> str:
        tests = f"{self.tests} random tests"
        match self.verdict:
            case "proved equal":
                text = f"proved equal, {f'and equal in {tests}' if self.checks else 'not tested'}"
            case "tested equal":
                text = f"tested equal in {tests}"
            case "different":
                return f"different: {self.counterexample}"
            case _:
                return f"unknown: {self.reason}"
        return text if self.condition is None else f"{text}, but only where {self.condition}"


def power_text(x: float) -> str:
    """A probability as the next power of 2."""
    return f"2^{math.ceil(math.log2(x))}" if x > 0 else "0"


def _bound_text(d: Draw) -> str:
    if d.error is None:
        return "no bound"
    arguments = f", {d.pairs} pairs of arguments with k={d.argument_k}" if d.pairs else ""
    return f"k={d.k}, d={d.d}{arguments}, error at most {power_text(d.error)}"
