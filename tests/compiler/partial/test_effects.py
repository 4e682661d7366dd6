"""Effects of programs that are evaluated in part: once each and in order; places that others may write to are read again."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import InputError
from mirage.ir.graph import nodes
from mirage.ir.graph.functional import functional
from mirage.ir.graph.interpret import run_module
from tests.compiler.partial.evaluated import FLAG, ONES, VECTOR, is_straight, specialized
from tests.compiler.test_functional import same
from tests.sampled import thinned


class Effects:
    """A random program of references, functions that are told what they hold, and conditions."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)

    def steps(self, refs: list[Any], x: Any, flags: list[Any], depth: int) -> Any:
        rng = self.rng
        refs = list(refs)
        for _ in range(rng.randint(2, 5)):
            r = rng.choice(refs)
            kind = rng.randrange(7 if depth else 5)
            if kind == 0:
                refs.append(mi.ref(x))
            elif kind == 1:
                x = mi.tanh(x + mi.read(r))
            elif kind == 2:
                mi.write(r, x * rng.randint(2, 5))
            elif kind == 3:
                mi.call_packed("note", mi.read(r), result=VECTOR)
            elif kind == 4:
                # a function that holds the place
                x = mi.closure(lambda v, r=r: mi.read(mi.write(r, v + mi.read(r))), VECTOR)(x)
            elif kind == 5:
                again = partial(self.steps, refs, x, flags, depth - 1)
                x = mi.cond(rng.choice(flags), lambda f=again: f(), lambda f=again: f())
            else:
                x = mi.loop(rng.choice([2, 200]), lambda i, s, r=r: mi.read(mi.write(r, mi.tanh(s + mi.read(r)))), x)
        return x + mi.read(rng.choice(refs))


@pytest.mark.parametrize("seed", thinned(range(12)))
def test_effects_stay_in_order(seed: int) -> None:
    def program(x: Any, y: Any, p: Any, q: Any) -> Any:
        refs = [mi.ref(x), mi.ref(y)]
        found = Effects(seed).steps(refs, x, [p, q], 2)
        return found, mi.read(refs[0]), mi.read(refs[1])

    module = mi.trace_module(program, {"x": VECTOR, "y": VECTOR, "p": FLAG, "q": FLAG})

    def run(m: nodes.Module, args: list[Any]) -> list[Any]:
        notes: list[np.ndarray] = []

        def note(a: np.ndarray) -> np.ndarray:
            notes.append(a.copy())
            return a

        return [*run_module(m, args, packed={"note": note}), *notes]

    x, y = np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32)
    for p in (True, False):
        for q in (True, False):
            wanted = run(module, [x, y, np.asarray(p), np.asarray(q)])
            same(run(specialized(module), [x, y, np.asarray(p), np.asarray(q)]), wanted)
            known = mi.specialize(module, {"p": p})
            same(run(known, [x, y, np.asarray(q)]), wanted)
            known = mi.specialize(module, {"p": p, "q": q})
            same(run(known, [x, y]), wanted)


def test_places_that_nobody_else_has_vanish() -> None:
    def program(x: Any, p: Any) -> Any:
        r = mi.ref(x)
        f = mi.closure(lambda v: mi.read(mi.write(r, mi.read(r) + v)), VECTOR)
        y = mi.loop(3, lambda i, s: f(s), x)
        return y, mi.read(r)

    module = mi.trace_module(program, {"x": VECTOR, "p": FLAG})
    made = specialized(module)
    assert is_straight(made)
    same(run_module(made, [ONES, np.asarray(True)]), run_module(module, [ONES, np.asarray(True)]))


def test_places_that_others_have_are_read_again() -> None:
    def program(x: Any, p: Any) -> Any:
        r = mi.ref(x)
        mi.write(r, x + 1)
        mi.cond(p, lambda: mi.read(mi.write(r, x + 2)), lambda: x)
        seen = mi.read(r)
        mi.write(r, x + 3)
        return seen, mi.read(r)

    module = mi.trace_module(program, {"x": VECTOR, "p": FLAG})
    made = specialized(module)
    for p in (True, False):
        found = run_module(made, [ONES, np.asarray(p)])
        same(found, ((3 if p else 2) * ONES, 4 * ONES))
    kinds = [b.value.kind for b in made.functions["program"].bindings if isinstance(b.value, nodes.ReferenceCall)]
    # the last write is known; what the condition does to the place is not
    assert kinds == ["new", "write", "read", "write"]


def test_functions_that_hold_themselves() -> None:
    """Recursion without a name: a place holds a function that reads the place."""

    def program(x: Any, n: Any) -> Any:
        step = mi.closure(lambda v, k: mi.read(mi.ref(v)), VECTOR, mi.tensor(dtype="int64"))
        place = mi.ref(step)

        def again(v: Any, k: Any) -> Any:
            return mi.cond(k <= 0, lambda: v, lambda: mi.read(place)(v + v, k - 1))

        mi.write(place, mi.closure(again, VECTOR, mi.tensor(dtype="int64")))
        return mi.read(place)(x, n)

    module = mi.trace_module(program, {"x": VECTOR, "n": mi.tensor(dtype="int64")})
    same(run_module(specialized(module), [ONES, np.asarray(3)]), 8 * ONES)
    same(run_module(mi.specialize(module, {"n": 3}), [ONES]), 8 * ONES)


def test_arrays_that_are_written_to() -> None:
    def program(x: Any, y: Any) -> Any:
        z = mi.zeros((3,)) + y
        return mi.add_(z, x), mi.add_(y, 1)

    module = mi.trace_module(program, {"x": mi.tensor(3), "y": mi.tensor(3)})
    made = mi.specialize(module, {"x": ONES})
    for m, args in ((module, [ONES, 2 * ONES]), (made, [2 * ONES])):
        for _ in range(2):
            given = [a.copy() for a in args]
            same(run_module(m, given), (3 * ONES, 3 * ONES))
            assert (given[-1] == 3).all()
    with pytest.raises(InputError, match="known 'y': a tensor in it may be written to in place; leave it an argument"):
        mi.specialize(module, {"y": ONES})


def test_what_is_written_to_between_is_read_again() -> None:
    def program(x: Any, y: Any, c: Any) -> Any:
        a = x + 1
        mi.add_(x, y)
        return a, x + 1, c * 2 + 1, mi.add_(c * 2, y)

    specs = {"x": mi.tensor(3), "y": mi.tensor(3), "c": mi.tensor(3)}
    made = mi.specialize(mi.trace_module(program, specs), {"c": ONES})
    for _ in range(2):
        same(run_module(made, [ONES.copy(), ONES]), (2 * ONES, 3 * ONES, 3 * ONES, 3 * ONES))
    # what is not written to is computed
    assert sum(isinstance(b.value, nodes.OpCall) and b.value.op == "mul" for f in made for b in f.bindings) == 1


def test_writes_of_functions_that_are_not_known() -> None:
    def program(x: Any, xs: Any) -> Any:
        mi.add_(x, 1)
        return mi.fold(lambda s, v: s * v, x, xs)

    module = mi.trace_module(program, {"x": VECTOR, "xs": mi.List(VECTOR)})
    with pytest.raises(InputError, match="known 'xs': a tensor in it may be written to"):
        mi.specialize(module, {"xs": [ONES]})
    made = mi.specialize(module, {"xs": [VECTOR, VECTOR]})
    assert not functional(made)
    same(mi.compile(made, without=("superoptimize", "fuse"))(ONES.copy(), 2 * ONES, 3 * ONES), 12 * ONES)
