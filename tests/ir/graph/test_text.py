"""Modules as text: printing and parsing are inverse, and what does not parse is refused with its line."""

from __future__ import annotations

import ast
from collections.abc import Callable
from random import Random

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mirage.errors import GraphError, MirageError, ParseError, ShapeError
from mirage.ir.annotations import (
    Annotation,
    CallableType,
    ObjectType,
    ShapeType,
    TupleType,
    tensor_annotation,
)
from mirage.ir.dims import to_dim
from mirage.ir.graph.nodes import Constant, LibraryCall, Module, OpCall
from mirage.ir.graph.parse import MAX_MODULE_TEXT, parse_annotation, parse_module
from mirage.ir.graph.text import constant_text, print_function, print_module
from mirage.ir.types import ELEMENTS, TensorType
from tests.ir.graph.modules import READERS, showcase
from tests.random_graphs import random_module


def test_showcase(golden: Callable[[str, str], None]) -> None:
    golden("graph_showcase.txt", print_module(showcase()))


def test_round_trip_of_every_form() -> None:
    text = print_module(showcase())
    again = parse_module(text, READERS)
    assert print_module(again) == text
    assert again.main == "start"
    assert again.kernels == showcase().kernels
    assert again.functions["body"].attrs == (("origin", "test"), ("rank", 1))
    assert [b.dataflow for b in again.functions["start"].blocks] == [True, False, True]


@pytest.mark.parametrize("seed", range(60))
def test_round_trip_of_random_modules(seed: int) -> None:
    text = print_module(random_module(Random(seed), 8))
    assert print_module(parse_module(text)) == text


def test_annotations_may_be_left_out() -> None:
    module = parse_module("def main(x: float32[n, 4]):\n    y = sum(x, axes=(1,))\n    return y\n")
    assert module.functions["main"].returns == TensorType((to_dim("n"),), "float32")


def test_bindings_know_their_line() -> None:
    module = parse_module("\n\ndef main(x: float32[n]):\n    y = neg(x)\n    return y\n")
    assert [b.where for b in module.functions["main"].bindings] == ["line 4"]


def test_functions_stand_in_any_order() -> None:
    text = print_module(showcase())
    head, *functions = text.split("\n\n\n")
    again = parse_module("\n\n\n".join([head, *reversed(functions)]), READERS)
    assert list(again.functions) == list(reversed(list(showcase().functions)))


# ---- annotations

_DIMS = st.lists(st.sampled_from([None, *map(to_dim, ["n", "2*m", "n*m + 1", "n//2", 0, 7])]), max_size=3).map(tuple)
_SHAPES = st.none() | _DIMS
_TENSORS = st.builds(lambda s, d: tensor_annotation(s, d), _SHAPES, st.none() | st.sampled_from(list(ELEMENTS)))
_ANNOTATIONS: st.SearchStrategy[Annotation] = st.recursive(
    _TENSORS | st.builds(ShapeType, _SHAPES) | st.just(ObjectType()),
    lambda inner: (
        st.builds(TupleType, st.lists(inner, max_size=3).map(tuple))
        | st.builds(CallableType, st.none() | st.lists(inner, max_size=2).map(tuple), inner, st.booleans())
    ),
    max_leaves=5,
)


@given(_ANNOTATIONS)
def test_annotations_read_back(annotation: Annotation) -> None:
    assert parse_annotation(str(annotation)) == annotation


@pytest.mark.parametrize(
    "text", ["", "float32", "float31[n]", "float32[n", "Tuple", "Callable[float32[n]]", "3", "x = 1"]
)
def test_no_annotations(text: str) -> None:
    with pytest.raises(MirageError, match="line 1"):
        parse_annotation(text)


# ---- constants


@given(st.sampled_from(list(ELEMENTS)), st.lists(st.integers(0, 3), max_size=3), st.randoms(use_true_random=False))
def test_constants_are_exact(dtype: str, shape: list[int], random: Random) -> None:
    kind = ELEMENTS[dtype]
    data = np.frombuffer(random.randbytes(int(np.prod(shape)) * kind.itemsize), np.uint8)
    array = (data % 2 if dtype == "bool" else data).view(kind).reshape(shape)
    _check_constant(array)


@pytest.mark.parametrize("value", [0.1, -0.0, 1e-45, 1 / 3, 3.4e38, float("inf"), float("nan")])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_numbers_are_exact(value: float, dtype: str) -> None:
    with np.errstate(over="ignore"):
        _check_constant(np.array([value, -value]).astype(ELEMENTS[dtype]))


def _check_constant(array: np.ndarray) -> None:
    type_ = TensorType(tuple(map(to_dim, array.shape)), array.dtype.name)
    module = parse_module(f"def main():\n    y = {type_}({constant_text(array)})\n    return y\n")
    (binding,) = module.functions["main"].bindings
    assert isinstance(binding.value, Constant)
    found = binding.value.array
    assert found.dtype == array.dtype and found.shape == array.shape and found.tobytes() == array.tobytes()
    assert not found.flags.writeable


def test_small_constants_are_readable() -> None:
    assert constant_text(np.array([0.1, -2, 1e10], np.float32)) == "0.1, -2.0, 10000000000.0"
    assert constant_text(np.array(1.5, ml_dtypes.bfloat16)) == "1.5"
    assert constant_text(np.array([True, False])) == "True, False"


def test_large_constants_may_be_left_out() -> None:
    text = "def main():\n    y = float32[100](...)\n    return y\n"
    module = _constant_module(np.zeros(100, np.float32))
    assert "float32[100](...)" in print_module(module, elide=99) and "..." in str(module)
    assert "..." not in print_module(module, elide=100)
    with pytest.raises(ParseError, match=r"line 2: .* left out; print the module without elide"):
        parse_module(text)


def _constant_module(array: np.ndarray) -> Module:
    text = f"def main():\n    y = float32[{array.size}]({constant_text(array)})\n    return y\n"
    return parse_module(text)


def test_attributes_without_text_are_refused() -> None:
    module = parse_module('def main(x: float32[n]):\n    y = library["f", float32[n]](x)\n    return y\n')
    main = module.functions["main"]
    (b,) = main.bindings
    assert isinstance(b.value, LibraryCall)
    for value in (object(), float("nan"), [1]):
        b.value.__dict__["attrs"] = (("a", value),)
        with pytest.raises(GraphError, match="has no text; use finite numbers"):
            print_function(main)


def test_no_operator_can_have_a_form_of_another_expression() -> None:
    """Names of operators are called; every other form has brackets, an attribute, or is a tuple or list."""
    tree = ast.parse(print_module(showcase()))
    for function in (f for f in tree.body if isinstance(f, ast.FunctionDef)):
        for s in (s for block in function.body if isinstance(block, ast.With) for s in block.body):
            assert isinstance(s, ast.AnnAssign)
            named = isinstance(s.value, ast.Call) and isinstance(s.value.func, ast.Name)
            binding = next(
                b for b in showcase().functions[function.name].bindings if b.var.name == ast.unparse(s.target)
            )
            assert named == isinstance(binding.value, OpCall)


# ---- refusals

_HEAD = "def f(a: float32[p]):\n    return a\n\ndef main(x: float32[n, 4], c: int64[()]):\n"
_OK = "    return x\n"


def _y(expression: str) -> str:
    return f"{_HEAD}    y = {expression}\n    return y\n"


BAD = {
    "no function": ("x = 1", "line 1: expected def NAME"),
    "empty": ("", "line 1: the module has no function"),
    "syntax": ("def main(x:\n", "line 1: .*expected Python syntax"),
    "no main": ("def f(x: float32[n]):\n    return x\n", "line 1: .*no function 'main'"),
    "defined twice": (_HEAD + _OK + "def f(x: float32[n]):\n    return x\n", "line 6: 'f' is defined twice"),
    "no return": (_HEAD + "    y = neg(x)\n", "line 5: expected return NAME"),
    "bare return": (_HEAD + "    return\n", "line 5: expected return NAME"),
    "no annotation": ("def main(x):\n    return x\n", "line 1: main: parameter .x.: nothing tells its type"),
    "defaults": ("def main(x: float32[n] = 3):\n    return x\n", "line 1: expected parameters of the form"),
    "starred": ("def main(*x: float32[n]):\n    return x\n", "line 1: expected parameters of the form"),
    "extra dim": ("def main(x: float32[n], *, k: int):\n    return x\n", "line 1: expected k: Dim"),
    "main takes dims": ("def main(x: float32[n], *, k: Dim):\n    return x\n", "line 1: .*extra shape parameters k"),
    "unknown decorator": ("@jit\ndef main(x: float32[n]):\n    return x\n", "line 1: expected @main or @attrs"),
    "two mains": ("@main\ndef f(x: float32[n]):\n    return x\n@main\ndef g(x: float32[n]):\n    return x\n", "line 5: a second"),
    "undefined": (_y("neg(z)"), "line 5: 'z' is not defined"),
    "assigned twice": (_y("neg(x)\n    y = neg(x)"), "line 6: 'y' is defined twice"),
    "no binding": (_HEAD + "    neg(x)\n    return x\n", "line 5: expected NAME: ANNOTATION"),
    "unknown operator": (_y("nag(x)"), "line 5: .*'nag' is not registered"),
    "unknown attribute": (_y("neg(x, z=1)"), "line 5: neg: unknown attribute 'z'"),
    "double star": (_y("neg(x, **z)"), "line 5: expected keywords by name"),
    "wrong shapes": (_y("matmul(x, x)"), "line 5: matmul: shapes"),
    "nested": (_y("neg(neg(x))"), "line 5: expected a variable"),
    "unknown form": (_y("map[f](x)"), "line 5: expected one of the forms call"),
    "unknown function": (_y("call[g](x)"), "line 5: .*'g'.* no such function"),
    "arguments": (_y("call[f](x, x)"), "line 5: call of f: 2 arguments"),
    "rank": (_y("call[f](x)"), "line 5: call of f: argument 'a' .*rank 2 instead of 1"),
    "dims": (_y("call[f](x, dims=(n,))"), "line 5: call of f: 1 shape arguments"),
    "keyword": (_y("call[f](x, dim=n)"), "line 5: expected no keywords but dims"),
    "recursion": (_y("call[main](x, c)"), "line 4: main: it never returns"),
    "condition": (_y("if_else[f, f](c, x)"), "line 5: if_else: the condition is int64"),
    "if without else": (_y("if_else[f](c, x)"), "line 5: expected if_else.THEN, ELSE"),
    "loop": (_y("loop[f](x)"), "line 5: expected loop.BODY"),
    "loop count": (_y("loop[f](c, (x,), (), count=2)"), "line 5: expected loop.BODY"),
    "cast": (_y("match_cast[float32[m]](x)"), "line 5: main: y: match_cast.*rank 2 instead of 1"),
    "open dim": (_y("full(shape=(q,), value=0)"), "line 5: main: y: nothing gives the size of q"),
    "open cast": (_y("match_cast[float32[p*q, 4]](x)"), "line 5: main: y: nothing gives the size of p, q"),
    "item": (_HEAD + "    t = (x,)\n    y = item[1](t)\n    return y\n", "line 6: item 1 of"),
    "item of a tensor": (_y("item[0](x)"), "line 5: item 0 of float32"),
    "no such kernel": (_y("kernel[k, float32[n]](x)"), "line 5: main: y: calls kernel 'k'"),
    "kernel kind": ('k = kernel("cuda", "...")\n' + _HEAD + _OK, "line 1: kernels of kind 'cuda' are not known here"),
    "kernel text": ('k = kernel("loops", "def")\n' + _HEAD + _OK, "line 1: in this kernel, line 1"),
    "partial result": (_y('library["f", float32[_]](x)'), "line 5: expected the type of a tensor"),
    "no result": (_y('library["f"](x)'), "line 5: main: y: library function 'f': results none"),
    "library name": (_y("library[f, float32[n]](x)"), "line 5: expected the name of a registered"),
    "in place": (_y('packed["f", Object, in_place[1]](x)'), "line 5: main: y: .*argument 1"),
    "effect": (_y('packed["add_", Object, in_place[0]](x, x)'), "line 5: main: y: effect 'add_' gives"),
    "dataflow": (_HEAD + '    with dataflow():\n        y = packed["f", Object](x)\n    return y\n', "line 6: main: y: has eff"),
    "with": (_HEAD + "    with open():\n        y = neg(x)\n    return y\n", "line 5: expected with dataflow"),
    "annotation": (_HEAD + "    y: float32[n, 5] = neg(x)\n    return y\n", "line 5: main: y: is annotated as float32"),
    "returns": ("def main(x: float32[n]) -> float32[m]:\n    return x\n", "line 1: the result is declared as float32"),
    "scalar": (_y("constant(value=1)"), "line 4: main: the result: scalar"),
    "elements": (_y("add(x, float32[2](1.0))"), "line 5: 1 elements for float32"),
    "element": (_y("add(c, int64[1](1.5))"), "line 5: 1.5 is no element of int64"),
    "element range": (_y("add(c, int32[1](3000000000))"), "line 5: 3000000000 is no element"),
    "base64": (_y('add(x, float32[1]("?"))'), "line 5: .*not base64"),
    "bytes": (_y('add(x, float32[2]("AAAA"))'), "line 5: 3 bytes of data"),
    "no bool": (_y('logical_not(bool[1]("Ag=="))'), "line 5: .*bytes that are no bool"),
    "symbolic constant": (_y("add(x, float32[n](1.0))"), "line 5: expected a constant with sizes"),
    "dim": ("def main(x: float32[n.m]):\n    return x\n", "line 1: "),
    "code": (_y("(lambda: 1)(x)"), "line 5: expected a variable"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_text_is_refused_with_its_line(name: str) -> None:
    text, message = BAD[name]
    with pytest.raises(MirageError, match=f"^{message}"):
        parse_module(text, READERS)


def test_errors_keep_their_class() -> None:
    with pytest.raises(ShapeError):
        parse_module(*(BAD["wrong shapes"][:1]))
    with pytest.raises(ParseError, match="characters; at most"):
        parse_module("#" * (MAX_MODULE_TEXT + 1))
    with pytest.raises(ParseError, match="expected Python syntax"):
        parse_module("(" * 5000)


@given(st.integers(0, 4000), st.sampled_from(["", "(", "]", "0", "n", "\n", "def ", "=", ": ", "call["]))
def test_damaged_text_is_refused_or_read(position: int, insert: str) -> None:
    text = print_module(showcase())
    at = position % len(text)
    damaged = text[:at] + insert + text[at + 1 :]
    try:
        module = parse_module(damaged, READERS)
    except MirageError as e:
        assert "line " in str(e)
    else:
        assert print_module(parse_module(print_module(module), READERS)) == print_module(module)


@given(st.text(st.sampled_from('"\\\n'), max_size=9) | st.text(max_size=12))
@example('\\"')
def test_texts_of_kernels_are_exact(text: str) -> None:
    class Kept:
        kind, symbols, output_types = 'a "kind"\n', (), ()

        def __init__(self, kept: str) -> None:
            self.kept = kept

        def to_text(self) -> str:
            return self.kept

    module = parse_module("def main(x: float32[n]):\n    return x\n")
    again = parse_module(print_module(Module(module.functions, {"k": Kept(text)})), {Kept.kind: Kept})
    assert again.kernels["k"].to_text() == text
