"""Computations over constants move to a function of their own, run once."""

from __future__ import annotations

from typing import Any

import pytest

from mirage.compiler.context import Context
from mirage.compiler.passes import dead_code, lift_constants
from mirage.compiler.passes.in_place import views_to_copy, written_variables
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import Module
from mirage.ir.graph.parse import parse_module
from mirage.kernels import blas
from tests.compiler.passes.running import after, assert_equal, evaluate, main_text, ops, random_arrays

TWO = """
def main(x: float32[b, k], w: float32[k, n], v: float32[k, m]):
    with dataflow():
        two = constant(value=2)
        s = mul(w, two)
        c = concat(s, v, axis=1)
        y = matmul(x, c)
    return y
"""


def prepared(module: Module) -> list[str] | None:
    """What the function of constant computations does; None where there is none."""
    name = module.functions[module.main].attr.get("prepare")
    return ops(module, str(name)) if name else None


def run_prepared(module: Module, *args: Any) -> Any:
    """The main function behind its preparation, as an executable calls it."""
    main = module.functions[module.main]
    name = main.attr.get("prepare")
    if not name:
        return evaluate(module, *args)
    prepare = module.functions[str(name)]
    values = {p.name: a for p, a in zip(main.parameters, args, strict=False)}
    alone = Module(module.functions, module.kernels, prepare.name)
    kept = run_module(alone, [values[p.name] for p in prepare.parameters], library=blas.FUNCTIONS)
    return evaluate(module, *args, *kept)


def test_prepare_and_main() -> None:
    context = Context(constants=("w", "v"))
    m = after(TWO, lift_constants.run, dead_code.run, context=context)
    assert ops(m) == ["matmul"]
    assert prepared(m) == ["constant", "mul", "concat", "MakeTuple"]
    assert [p.name for p in m.functions["main"].parameters] == ["x", "w", "v", "c_lifted"]
    assert str(m.functions["main"].parameters[-1].annotation) == "float32[k, m + n]"
    assert context.constants == ("w", "v", "c_lifted")
    args = random_arrays(0, (2, 3), (3, 4), (3, 5))
    assert_equal(run_prepared(m, *args), evaluate(parse_module(TWO), *args))


@pytest.mark.parametrize(
    ("call", "lifted"),
    [
        ('library["some", float32[n, 4]](x, t)', ["transpose", "MakeTuple"]),
        ("matmul(x, t)", None),
        ('packed["some", float32[n, 4]](x, t)', None),
    ],
    ids=["a library function", "an operator", "an effect"],
)
def test_a_transposed_constant_that_a_library_function_reads(call: str, lifted: list[str] | None) -> None:
    text = f"""
def main(x: float32[n, 3], w: float32[4, 3]):
    with dataflow():
        t = transpose(w, perm=(1, 0))
    y = {call}
    return y
"""
    assert prepared(after(text, lift_constants.run, context=Context(constants=("w",)))) == lifted


@pytest.mark.parametrize(
    ("views", "lifted"),
    [
        ("m = reshape(w, shape=(6, 4))\n        u = transpose(m, perm=(1, 0))", ["reshape", "MakeTuple"]),
        ("m = transpose(w, perm=(2, 1, 0))\n        u = reshape(m, shape=(4, 6))", ["transpose", "reshape", "MakeTuple"]),
        ("u = transpose(v, perm=(1, 0))", None),
    ],
)
def test_the_matrix_of_a_product_is_made_once_but_for_its_transpose(views: str, lifted: list[str] | None) -> None:
    text = f"""
def main(x: float32[n, 4], w: float32[6, 2, 2], v: float32[6, 4]):
    with dataflow():
        {views}
        y = matmul(x, u)
    return y
"""
    context = Context(constants=("w", "v"))
    m = after(text, lift_constants.run, dead_code.run, context=context)
    assert prepared(m) == lifted
    args = random_arrays(0, (3, 4), (6, 2, 2), (6, 4))
    assert_equal(run_prepared(m, *args), evaluate(parse_module(text), *args))


def test_again_changes_nothing() -> None:
    context = Context(constants=("w", "v"))
    m = after(TWO, lift_constants.run, context=context)
    assert lift_constants.run(m, context) is m


def test_only_what_depends_on_constants_alone() -> None:
    m = after(TWO, lift_constants.run, context=Context(constants=("w",)))
    assert prepared(m) == ["constant", "mul", "MakeTuple"]
    args = random_arrays(1, (2, 3), (3, 4), (3, 5))
    assert_equal(run_prepared(m, *args), evaluate(parse_module(TWO), *args))


@pytest.mark.parametrize(
    ("body", "constants"),
    [
        ("r = matmul(x, w)", ("w",)),
        # no parameter is constant
        ("s = exp(w)\nr = matmul(x, s)", ()),
        # free to read in another order
        ("t = transpose(x, perm=(1, 0))\ns = transpose(w, perm=(1, 0))\nr = matmul(s, t)", ("w",)),
        # larger than what it is made of
        ("s = repeat(w, axis=1, times=2)\nr = matmul(x, s)", ("w",)),
        # users get it, and may write to it
        ("r = exp(w)", ("w",)),
        # a size that only x knows
        ("d = size(dim=b)\ns = div(w, d)\nr = matmul(x, s)", ("w",)),
    ],
)
def test_what_stays(body: str, constants: tuple[str, ...]) -> None:
    text = main_text(body, "x: float32[b, k], w: float32[k, n]")
    context = Context(constants=constants)
    assert prepared(after(text, lift_constants.run, context=context)) is None
    assert context.constants == constants


@pytest.mark.parametrize(("body", "lifted"), [
    ("r = convolution(x, k, strides=(1,), dilations=(1,))", ["dequantize", "MakeTuple"]),
    # of a product, they are read as they are stored
    ("v = reshape(k, shape=(4, 6))\nt = transpose(v, perm=(1, 0))\nr = matmul(y, t)", None),
])  # fmt: skip
def test_weights_of_convolutions_are_made_once(body: str, lifted: list[str] | None) -> None:
    parameters = "x: float32[b, 2, m], y: float32[b, 6], q: int8[4, 2, 3], s: float32[4]"
    text = main_text(f"k = dequantize(q, s, axis=0)\n{body}", parameters)
    assert prepared(after(text, lift_constants.run, context=Context(constants=("q", "s")))) == lifted


def test_arrays_that_the_compiler_knows() -> None:
    text = main_text("s = exp(float32[2, 1](1, 2))\nr = mul(x, s)", "x: float32[2, n]")
    m = after(text, lift_constants.run)
    assert prepared(m) == ["exp", "MakeTuple"]
    (x,) = random_arrays(2, (2, 3))
    assert_equal(run_prepared(m, x), evaluate(parse_module(text), x))


def test_constants_that_an_effect_writes_to_stay() -> None:
    text = """
def main(x: float32[k], w: float32[k]):
    with dataflow():
        s = exp(w)
        y = add(x, s)
    e = packed["clear", Object, in_place[0]](w)
    with dataflow():
        t = exp(w)
        z = add(y, t)
    return z
"""
    m = after(text, lift_constants.run, context=Context(constants=("w",)))
    assert prepared(m) is None


def test_dims_of_constants() -> None:
    text = """
def main(x: float32[k, 2], w: float32[2*k], u: float32[k]):
    with dataflow():
        e = exp(w)
        s = reshape(e, shape=(k, 2))
        z = add(x, s)
        t = exp(u)
        r = reshape(t, shape=(1, k))
        y = matmul(r, z)
    return y
"""
    m = after(text, lift_constants.run, context=Context(constants=("w", "u")))
    assert prepared(m) == ["exp", "exp", "MakeTuple"]
    args = random_arrays(3, (3, 2), (6,), (3,))
    assert_equal(run_prepared(m, *args), evaluate(parse_module(text), *args))


def test_views_stand_on_both_sides() -> None:
    text = """
def main(x: float32[b, k], w: float32[n, k], v: float32[n, k]):
    with dataflow():
        t = transpose(w, perm=(1, 0))
        u = add(w, v)
        s = transpose(u, perm=(1, 0))
        c = concat(t, s, axis=1)
        y = matmul(x, t)
        z = matmul(x, c)
        r = (y, z)
    return r
"""
    m = after(text, lift_constants.run, context=Context(constants=("w", "v")))
    assert prepared(m) == ["transpose", "add", "transpose", "concat", "MakeTuple"]
    assert ops(m) == ["transpose", "matmul", "matmul", "MakeTuple"]
    args = random_arrays(4, (2, 3), (4, 3), (4, 3))
    assert_equal(run_prepared(m, *args), evaluate(parse_module(text), *args))


LOOP = """
def main(x: float32[4, 4], w: float32[4, 4]) -> float32[4, 4]:
    with dataflow():
        t: float32[4, 4] = transpose(w, perm=(1, 0))
    r: float32[4, 4] = loop[body]({arguments}, count=3)
    return r


def body(i: int64[()], a: float32[4, 4], c: float32[4, 4]) -> float32[4, 4]:
    with dataflow():
        y: float32[4, 4] = matmul(a, c)
    {effect}
    return y
"""


@pytest.mark.parametrize(
    ("arguments", "effect", "lifted"),
    [
        ("(x,), (t,)", "", ["transpose", "MakeTuple"]),
        # a loop may change what it carries, and effects what they write to
        ("(t,), (x,)", "", None),
        ("(x,), (t,)", 'z: float32[4, 4] = packed["copy_", float32[4, 4], in_place[0]](c, y)', None),
    ],
)
def test_a_transposed_constant_that_all_rounds_of_a_loop_read(
    arguments: str, effect: str, lifted: list[str] | None
) -> None:
    before = parse_module(LOOP.format(arguments=arguments, effect=effect))
    m = after(before, lift_constants.run, dead_code.run, context=Context(constants=("w",)))
    assert prepared(m) == lifted
    if not effect:
        x, w = random_arrays(2, (4, 4), (4, 4))
        assert_equal(run_prepared(m, x, w), evaluate(before, x, w))


RECURRENT = """
def main(x: float32[4, 4], w: float32[4, 4]):
    with dataflow():
        t: float32[4, 4] = transpose(w, perm=(1, 0))
        rows: float32[3, 4, 4] = full(shape=(3, 4, 4), value=0, dtype='float32')
    r = loop[body]((x, rows), (t,), count=3)
    with dataflow():
        s = item[1](r)
    return s


def body(i: int64[()], a: float32[4, 4], rows: float32[3, 4, 4], c: float32[4, 4]):
    with dataflow():
        y: float32[4, 4] = matmul(a, c)
    z: float32[3, 4, 4] = packed["scatter_", float32[3, 4, 4], in_place[0]](rows, i, y, axis=0)
    with dataflow():
        r = ({result})
    return r
"""


@pytest.mark.parametrize(
    ("result", "lifted"),
    [
        ("y, rows", ["transpose", "MakeTuple"]),
        # the caller gets memory of the constant, or another round writes to what was one before
        ("c, rows", None),
    ],
)
def test_a_loop_that_writes_to_what_it_carries_only_reads_the_rest(result: str, lifted: list[str] | None) -> None:
    text = RECURRENT.format(result=result)
    m = after(text, lift_constants.run, dead_code.run, context=Context(constants=("w",)))
    assert prepared(m) == lifted
    x, w = random_arrays(2, (4, 4), (4, 4))
    assert_equal(run_prepared(m, x, w), evaluate(parse_module(text), x, w))


EXCHANGED = """
def main(x: float32[2]):
    with dataflow():
        a: float32[2] = neg(x)
        b: float32[2] = exp(x)
        v: float32[2, 1] = reshape({value}, shape=(2, 1))
    r = loop[body]((a, b), (x,), count=3)
    with dataflow():
        s = abs(v)
    return s


def body(i: int64[()], a: float32[2], b: float32[2], c: float32[2]):
    z: float32[2] = packed["add_", float32[2], in_place[0]](a, c)
    with dataflow():
        r = (b, a)
    return r
"""


@pytest.mark.parametrize("value", ["a", "b"])
def test_a_loop_writes_to_all_that_it_exchanges(value: str) -> None:
    module = parse_module(EXCHANGED.format(value=value))
    main = module.functions["main"]
    assert {v.name for v in written_variables(main, module.functions)} == {"a", "b", "r", "s"}
    assert {v.name for v in views_to_copy(main, module.functions, called=False)} == {"v"}
