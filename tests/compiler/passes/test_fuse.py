"""Which operators become one kernel, and what it computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage.compiler.constraints import from_bounds
from mirage.compiler.context import Context
from mirage.compiler.kernels.mugraph import MuGraphKernel
from mirage.compiler.passes import canonicalize, collect_constraints, fuse, generate, inline
from mirage.ir.graph.check import check
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import KernelCall, Module, OpCall
from mirage.ir.graph.parse import parse_module
from mirage.ir.types import TensorType


def fused(text: str) -> Module:
    context = Context()
    module = parse_module(text)
    for p in (canonicalize, collect_constraints, fuse):
        module = p.run(module, context)
        check(module)
    return module


def groups(text: str) -> list[list[str]]:
    """The operators of every kernel, but for scalars."""
    return [
        [b.value.op for b in f.bindings if isinstance(b.value, OpCall) and b.value.op not in ("constant", "size")]
        for f in fused(text)
        if f.attr.get("origin") == "fused"
    ]


def body(lines: str, parameters: str = "x: float32[n, m], y: float32[n, m], w: float32[m]", result: str = "r") -> str:
    inside = "\n".join(f"        {line.strip()}" for line in lines.strip().splitlines())
    return f"def main({parameters}):\n    with dataflow():\n{inside}\n    return {result}\n"


def test_elementwise_chains_are_one_kernel() -> None:
    assert groups(body("a = exp(x)\nb = add(a, w)\nr = mul(b, y)")) == [["exp", "add", "mul"]]


def test_a_diamond_is_one_kernel() -> None:
    assert groups(body("a = exp(x)\nb = neg(a)\nc = square(a)\nr = add(b, c)")) == [["exp", "neg", "square", "add"]]


def test_elementwise_operators_join_the_reduction_behind_them() -> None:
    assert groups(body("a = exp(x)\nb = mul(a, y)\nr = max(b, axes=(1,), keepdims=False)")) == [["exp", "mul", "max"]]


def test_rows_are_stitched_whatever_their_lengths() -> None:
    text = body(
        """
        m1 = max(x, axes=(1,), keepdims=True)
        d = sub(x, m1)
        e = exp(d)
        s = sum(e, axes=(1,), keepdims=True)
        r = mul(e, s)
        """
    )
    assert groups(text) == [["max", "sub", "exp", "sum", "mul"]]


def test_reductions_over_other_dims_are_not_stitched() -> None:
    text = body("a = max(x, axes=(0,), keepdims=True)\nb = sub(x, a)\nr = max(b, axes=(1,), keepdims=False)")
    assert len(groups(text)) == 2


def test_what_two_kernels_read_is_a_result_of_one() -> None:
    text = body("a = exp(x)\nb = max(a, axes=(0,), keepdims=False)\nc = neg(a)\nr = (b, c)")
    found = groups(text)
    assert sorted(op for g in found for op in g) == ["exp", "max", "neg"]


def test_opaque_operators_separate_kernels() -> None:
    text = body("a = exp(x)\nb = sort(a, axis=-1)\nr = neg(b)")
    assert groups(text) == [["exp"], ["neg"]]


def test_no_kernel_waits_for_itself() -> None:
    # a -> sort -> c and a -> c: a and c must not be one kernel
    text = body("a = exp(x)\nb = sort(a, axis=-1)\nr = add(a, b)")
    assert groups(text) == [["exp"], ["add"]]


def test_no_two_kernels_wait_for_each_other() -> None:
    # d reads a by way of q, and s reads c by way of two bindings behind d: {a, s} and {c, d} must not both be kernels
    text = body(
        """
        a = exp(x)
        q = sort(a, axis=0)
        c = exp(y)
        d = sub(c, q)
        j = sort(c, axis=0)
        k = sort(j, axis=0)
        s = sub(k, a)
        r = (d, s)
        """
    )
    assert sorted(groups(text)) == [["exp"], ["exp", "sub"], ["sub"]]


CASES = {
    "masked softmax": (
        """
        i = arange(start=0, stop=n, step=1, dtype='int64')
        row = reshape(i, shape=(n, 1))
        j = arange(start=0, stop=m, step=1, dtype='int64')
        seen = less_equal(j, row)
        zero = full(shape=(), value=-1000000000.0, dtype='float32')
        masked = where(seen, x, zero)
        r = softmax(masked, axis=-1)
        """,
        "x: float32[n, m]",
    ),
    "gather and norm": (
        """
        e = take(t, i, axis=0)
        f = cast(i, dtype='float32')
        g = reshape(f, shape=(n, 1))
        h = add(e, g)
        r = layer_norm(h, axis=-1, eps=1e-05)
        """,
        "t: float32[9, m], i: int64[n]",
    ),
    "rotation": (
        """
        a = slice(x, axes=(1,), starts=(0,), stops=(m,), steps=(1,))
        b = slice(x, axes=(1,), starts=(m,), stops=(2*m,), steps=(1,))
        nb = neg(b)
        c = concat(nb, a, axis=1)
        d = mul(c, y)
        e = mul(x, y)
        r = add(d, e)
        """,
        "k: Shape[m], x: float32[n, 2*m], y: float32[2*m]",
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 7), (16, 33), (0, 3)])
def test_kernels_compute_what_the_operators_do(name: str, n: int, m: int) -> None:
    lines, parameters = CASES[name]
    text = body(lines, parameters)
    context = Context(sizes=({"n": 5, "m": 7},))
    module = parse_module(text)
    for step in (canonicalize, collect_constraints, fuse, generate, inline):
        module = step.run(module, context)
        check(module)
    assert module.kernels and not context.report.fallbacks
    rng = np.random.default_rng(0)
    arguments: list[Any] = []
    for p in parse_module(text).functions["main"].parameters:
        if p.name == "k":
            arguments.append((m,))
        elif p.name == "i":
            arguments.append(rng.integers(0, 9, n))
        else:
            assert isinstance(p.annotation, TensorType)
            shape = p.annotation.bind({"n": n, "m": m})
            arguments.append(rng.standard_normal(shape).astype(np.float32))
    got = run_module(module, arguments)
    want = run_module(parse_module(text), arguments, wide=True)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def test_equal_groups_share_a_kernel() -> None:
    text = body(
        "a = exp(x)\na2 = neg(a)\nb = sort(a2, axis=-1)\nc = exp(b)\nd = neg(c)\ne = sort(d, axis=-1)\nr = neg(e)",
        "x: float32[n, m]",
    )
    context = Context(sizes=({"n": 5, "m": 7},))
    module = parse_module(text)
    for step in (collect_constraints, fuse, generate):
        module = step.run(module, context)
    calls = [b.value.kernel for f in module for b in f.bindings if isinstance(b.value, KernelCall)]
    assert len(calls) == 3 and len(set(calls)) == 2


def test_kernels_know_what_is_known_of_the_dims_around_them() -> None:
    text = body("r = softmax(x, axis=-1)", "x: float32[n, m]")
    context = Context(sizes=({"n": 8, "m": 8},), bounds=from_bounds({"n": 8, "m": 8}))
    module = parse_module(text)
    for step in (collect_constraints, fuse, generate):
        module = step.run(module, context)
    assert context.of("main_fused").upper_bound("n*m") == 64
    (kernel,) = module.kernels.values()
    assert isinstance(kernel, MuGraphKernel)
    assert all(size <= 8 for v in kernel.versions for size in v.sizes.values())


def test_equal_groups_of_which_other_facts_are_known_do_not_share_a_kernel() -> None:
    text = """
def f(a: float32[n, m]) -> float32[n, m]:
    with dataflow():
        r = exp(a)
    return r

def main(a: float32[n, m], p: bool[()]):
    with dataflow():
        s = exp(a)
        b = sort(s, axis=-1)
        r = if_else[f, f](p, b)
    return r
"""
    for more, kernels in ((False, 1), (True, 2)):
        context = Context(sizes=({"n": 8, "m": 8},))
        module = parse_module(text)
        for step in (collect_constraints, fuse):
            module = step.run(module, context)
        if more:
            context.of("f_fused").add_range("n", 0, 4, "a guard of f")
        assert len(generate.run(module, context).kernels) == kernels


def test_a_reshape_alone_is_a_view() -> None:
    text = body("a = sort(x, axis=-1)\nb = reshape(a, shape=(n*m,))\nr = sort(b, axis=-1)")
    assert groups(text) == []
    assert groups(text.replace("r = sort(b, axis=-1)", "r = exp(b)")) == [["reshape", "exp"]]


def test_tensors_that_are_only_moved_are_loop_nests() -> None:
    context = Context(sizes=({"n": 5, "m": 7},))
    module = parse_module(body("a = concat(x, y, axis=0)\nb = transpose(a, perm=(1, 0))\nr = repeat(b, axis=0, times=2)"))
    for step in (collect_constraints, fuse, generate):
        module = step.run(module, context)
    assert [k.kind for k in module.kernels.values()] == ["loops"]


def test_equal_layers_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def note(name: str, make: Any) -> Any:
        def noted(*args: Any) -> Any:
            asked.append(name)
            return make(*args)

        return noted

    for name in ("binding_kind", "fusible", "stitchable"):
        monkeypatch.setattr(fuse, name, note(name, getattr(fuse, name)))

    def layers(count: int) -> list[str]:
        asked.clear()
        lines, x = [], "x"
        for k in range(count):
            lines += [f"m{k} = max({x}, axes=(1,), keepdims=True)", f"d{k} = sub({x}, m{k})", f"e{k} = exp(d{k})"]
            lines += [f"p{k} = matmul(e{k}, w)", f"s{k} = add(p{k}, y)"]
            x = f"s{k}"
        found = groups(body("\n".join(lines), "x: float32[n, 8], y: float32[n, 8], w: float32[8, 8]", x))
        assert len(found) == 2 * count
        return list(asked)

    # the first layer reads a parameter, the last one's result is that of the function: what is between is as the second
    three = layers(3)
    assert set(three) == {"binding_kind", "fusible", "stitchable"}
    assert layers(6) == three



@pytest.mark.parametrize(("dims", "kernels"), [("b, n, m", [["exp", "mul"]]), ("b, n, 16", [["exp", "mul", "reshape"]])])
def test_a_last_reshape_of_unknown_sizes_is_no_part_of_a_kernel(dims: str, kernels: list[list[str]]) -> None:
    flat = f"b, {dims[3:].replace(', ', ' * ')}"
    lines = f"a = exp(x)\nc = mul(a, x)\nr = reshape(c, shape=({flat}))"
    assert groups(body(lines, f"x: float32[{dims}]")) == kernels
