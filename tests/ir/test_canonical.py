"""The canonical form: equal for programs that differ in names and order only, different for all others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage.errors import AxisError
from mirage.ir.axes import AxisProgram, to_axes
from mirage.ir.canonical import Canonical, Renaming, canonical_key
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import tensor
from tests.ir.programs import rewritten, shared_program
from tests.mugraph.graphs import CASES, attention_program
from tests.random_programs import random_program

Build = Callable[[ProgramBuilder], int]


def program(build: Build) -> AxisProgram:
    b = ProgramBuilder("f")
    return to_axes(b.finish([build(b)]))


def text(build: Build) -> str:
    return canonical_key(program(build)).text


def applied(p: AxisProgram, r: Renaming) -> tuple[dict[str, str], dict[int, tuple[tuple[str, ...], ...]]]:
    """Axes with sizes and inputs with dims, renamed."""
    axes = {r.axes[a]: str(r.dim(d)) for a, d in p.axes.items()}
    inputs = {r.inputs[k]: tuple(tuple(r.axes[a] for a in d) for d in x.dims) for k, x in enumerate(p.inputs)}
    return axes, inputs


def check(p: AxisProgram, found: Canonical) -> None:
    """The renaming leads from the program to its canonical form."""
    axes, inputs = applied(p, found.renaming)
    assert axes == {a: str(d) for a, d in found.program.axes.items()}
    assert inputs == {k: x.dims for k, x in enumerate(found.program.inputs)}
    arguments = {r: x.argument for r, x in zip(found.renaming.inputs, p.inputs, strict=True)}
    same = {(x.argument, arguments[k]) for k, x in enumerate(found.program.inputs)}
    assert len(same) == len(set(arguments.values())) == len({x.argument for x in found.program.inputs})
    again = canonical_key(found.program)
    assert again.text == found.text


@given(st.integers(0, 10**6))
def test_names_and_order_do_not_matter(seed: int) -> None:
    rng = Random(seed)
    p = to_axes(random_program(rng, rng.randint(1, 8)))
    other, _ = rewritten(p, rng)
    one, two = canonical_key(p), canonical_key(other)
    assert one.text == two.text
    check(p, one)
    check(other, two)
    axes, inputs = applied(p, one.renaming_to(two))
    assert axes == {a: str(d) for a, d in other.axes.items()}
    assert inputs == {k: x.dims for k, x in enumerate(other.inputs)}


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_which_inputs_read_one_argument_is_kept(seed: int) -> None:
    rng = Random(seed)
    p = to_axes(shared_program(rng))
    other, _ = rewritten(p, rng)
    one, two = canonical_key(p), canonical_key(other)
    assert one.text == two.text
    check(p, one)
    check(other, two)
    apart = replace(p, inputs=tuple(replace(x, argument=x.name) for x in p.inputs))
    assert (canonical_key(apart).text == one.text) == (apart == p)


def test_one_argument_read_twice_differs_from_two() -> None:
    def product(b: ProgramBuilder, *names: str) -> int:
        x, *rest = (b.input(name, tensor("m", "k")) for name in names)
        return b.op("matmul", x, b.op("transpose", rest[0] if rest else x, perm=(1, 0)))

    assert text(lambda b: product(b, "x")) == text(lambda b: product(b, "other"))
    assert text(lambda b: product(b, "x")) != text(lambda b: product(b, "x", "y"))


def test_which_of_three_inputs_read_one_argument_matters() -> None:
    """x y^T x^T-like chains: which two of three inputs are one array decides what is computed."""
    found = set()
    for same in ((0, 1), (0, 2), (1, 2)):
        b = ProgramBuilder("f")
        names = ["p", "p", "p"]
        names[next(k for k in range(3) if k not in same)] = "q"
        made = {name: b.input(name, tensor("n", "n")) for name in dict.fromkeys(names)}
        x, y, z = (made[name] for name in names)
        found.add(canonical_key(to_axes(b.finish([b.op("matmul", b.op("exp", b.op("matmul", x, y)), z)]))).text)
    assert len(found) == 3


@pytest.mark.parametrize("name", CASES)
def test_shared_programs_rewritten(name: str) -> None:
    p = to_axes(CASES[name]().program)
    expected = canonical_key(p).text
    for seed in range(20):
        assert canonical_key(rewritten(p, Random(seed))[0]).text == expected


def unused(pairs: list[tuple[int, int]]) -> str:
    """The text of a program whose unused inputs share symbols as the edges of a graph share vertices."""

    def build(b: ProgramBuilder) -> int:
        for k, (i, j) in enumerate(pairs):
            b.input(f"y{k}", tensor(f"s{i}", f"s{j}"))
        return b.op("exp", b.input("x", tensor("n")))

    return text(build)


def test_what_refinement_alone_cannot_tell_apart() -> None:
    six = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0)]
    three = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)]
    names = [3, 5, 0, 4, 1, 2]
    for cycles in (six, three):
        renamed = [(names[i], names[j]) for i, j in cycles]
        assert unused(renamed[2:] + renamed[:2]) == unused(cycles)
    assert unused(six) != unused(three)


def test_symbols_of_a_sum_are_told_apart_by_their_other_uses() -> None:
    def build(b: ProgramBuilder, first: str, second: str) -> int:
        return b.op("exp", b.input("x", tensor(f"{first} + {second}", f"2*{first} + {second}")))

    assert text(lambda b: build(b, "m", "n")) == text(lambda b: build(b, "n", "m"))
    assert text(lambda b: build(b, "m", "n")) != text(lambda b: build(b, "m", "m"))


def test_many_interchangeable_inputs_take_little_time() -> None:
    pairs = [(2 * i, 2 * i + 1) for i in range(10)]
    assert unused(pairs) == unused([(j, i) for i, j in pairs])


def mm(b: ProgramBuilder, x: tuple[object, ...] = ("m", 64), y: tuple[object, ...] = (64, "n")) -> int:
    return b.op("matmul", b.input("x", tensor(*x)), b.input("y", tensor(*y)))


def flipped(b: ProgramBuilder) -> int:
    x, y = b.input("x", tensor("m", 64)), b.input("y", tensor("n", 64))
    return b.op("matmul", x, b.op("transpose", y, perm=(1, 0)))


def scaled(b: ProgramBuilder, value: Fraction) -> int:
    return b.op("mul", mm(b), b.op("constant", value=value))


DIFFERENT: dict[str, tuple[Build, Build]] = {
    "another operator": (lambda b: b.op("exp", mm(b)), lambda b: b.op("relu", mm(b))),
    "another literal size": (mm, lambda b: mm(b, ("m", 32), (32, "n"))),
    "a literal and a symbolic size": (mm, lambda b: mm(b, ("m", "k"), ("k", "n"))),
    "one symbol and two": (mm, lambda b: mm(b, ("m", 64), (64, "m"))),
    "a multiple of a symbol": (mm, lambda b: mm(b, ("4*m", 64), (64, "n"))),
    "another multiple": (lambda b: mm(b, ("2*m", 64), (64, "n")), lambda b: mm(b, ("4*m", 64), (64, "n"))),
    "a power of a symbol": (lambda b: mm(b, ("m*m", 64), (64, "n")), lambda b: mm(b, ("m*k", 64), (64, "n"))),
    "a transposed input": (mm, flipped),
    "another constant": (lambda b: scaled(b, Fraction(1, 2)), lambda b: scaled(b, Fraction(1, 3))),
    "another layout of the result": (mm, lambda b: b.op("transpose", mm(b), perm=(1, 0))),
    "a merged result": (mm, lambda b: b.op("reshape", mm(b), shape=("m*n",))),
    "swapped operands": (
        lambda b: b.op("sub", b.input("x", tensor("n")), b.op("exp", b.input("y", tensor("n")))),
        lambda b: b.op("sub", b.op("exp", b.input("y", tensor("n"))), b.input("x", tensor("n"))),
    ),
    "an axis of length 1": (mm, lambda b: mm(b, (1, 64), (64, "n"))),
    "an unused input": (mm, lambda b: (b.input("z", tensor("n")), mm(b))[1]),
    "another reduced axis": (
        lambda b: b.op("sum", mm(b), axes=(0,)),
        lambda b: b.op("sum", mm(b), axes=(1,)),
    ),
    "one input twice": (
        lambda b: b.op("mul", b.input("x", tensor("n")), b.input("y", tensor("n"))),
        lambda b: b.op("square", b.input("x", tensor("n"))),
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_different_programs_differ(what: str) -> None:
    one, two = DIFFERENT[what]
    assert text(one) == text(one)
    assert text(one) != text(two)


def outputs(b: ProgramBuilder, swap: bool) -> Program:
    x = b.input("x", tensor("n"))
    found = [b.op("exp", x), b.op("relu", x)]
    return b.finish(found[::-1] if swap else found)


def test_the_order_of_results_matters() -> None:
    keys = [canonical_key(to_axes(outputs(ProgramBuilder("f"), swap))).text for swap in (False, True)]
    assert keys[0] != keys[1]


def test_renaming_between_different_programs_is_refused() -> None:
    one, two = canonical_key(program(mm)), canonical_key(program(flipped))
    with pytest.raises(AxisError, match="the programs differ"):
        one.renaming_to(two)


def test_renamings_compose_and_invert() -> None:
    p = to_axes(attention_program())
    other, r = rewritten(p, Random(3))
    assert r.then(r.inverse()) == Renaming(
        {a: a for a in p.axes}, {s: s for s in r.symbols}, tuple(range(len(p.inputs)))
    )
    assert applied(p, r)[0] == {a: str(d) for a, d in other.axes.items()}
