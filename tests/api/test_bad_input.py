"""Arrays, sizes and options that do not fit: each is an error that names its input or dim, or works."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage import api
from mirage.errors import (
    BudgetError,
    CacheError,
    DimError,
    DTypeError,
    InputError,
    MirageError,
    SearchError,
    ShapeError,
    TraceError,
    UnknownPruner,
    UnknownTarget,
)
from mirage.ir.interpret import run_reference
from mirage.results.cpu.result import Superoptimized
from mirage.search.decision import Version
from tests.api.small import adapter, arrays, check, rows, several
from tests.modelled import modelled

X = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)


@functools.cache
def result(name: str = "rows") -> Superoptimized:
    f = {"rows": rows, "adapter": adapter, "several": several}[name]
    return modelled(f.trace(), f.sizes["default"], kernels=2)


def expected(x: np.ndarray) -> np.ndarray:
    (r,) = run_reference(result().program, [x], {"m": x.shape[0], "n": x.shape[1]})
    return r


WRONG: dict[str, tuple[Any, str]] = {
    "rank 1": (X[0], "input 'x' has shape [8]"),
    "rank 3": (X[None], "input 'x' has shape [1, 3, 8]"),
    "rank 0": (np.array(3, np.float32), "input 'x' has shape []"),
    "NumPy scalar": (np.float32(3), "input 'x' has shape []"),
    "float64": (X.astype(np.float64), "input 'x' has dtype float64, the program wants float32"),
    "float16": (X.astype(np.float16), "input 'x' has dtype float16"),
    "complex": (X.astype(np.complex64), "input 'x' has dtype complex64"),
    "integers": (X.astype(np.int64), "input 'x' has dtype int64"),
    "booleans": (X > 0, "input 'x' has dtype bool"),
    "objects": (X.astype(object), "input 'x' has dtype object"),
    "text": (X.astype("U8"), "input 'x' has dtype <U8"),
    "big-endian": (X.astype(">f4"), "input 'x' has dtype >f4"),
    "record": (X.view([("a", "f4")]), "input 'x' has dtype"),
    "masked": (np.ma.masked_array(X, mask=X > 0), "input 'x': is a masked array"),
    "None": (None, "input 'x': NoneType is not an array"),
    "list": (X.tolist(), "input 'x': list is not an array"),
    "number": (3.0, "input 'x': float is not an array"),
    "str": ("abc", "input 'x': str is not an array"),
    "class": (np.ndarray, "input 'x'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arrays_are_named(case: str) -> None:
    x, message = WRONG[case]
    with pytest.raises(InputError) as e:
        result()(x)
    assert "rows: " in str(e.value)
    assert message in str(e.value)


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arrays_are_named_where_the_library_runs_too(case: str) -> None:
    kernel = result()
    versions = (Version("library", kernel.best.timing),)
    library = replace(kernel, decision=replace(kernel.decision, versions=versions))
    assert library.best.kind == "library"
    with pytest.raises(InputError, match="input 'x'"):
        library(WRONG[case][0])


def test_wrong_numbers_of_arguments() -> None:
    for args in ((), (X, X)):
        with pytest.raises(InputError, match=rf"rows: takes 1 arrays \(x\), got {len(args)}"):
            result()(*args)


def test_dims_that_disagree_are_named_with_both_sizes() -> None:
    x, w, v = arrays(adapter.trace(), {"b": 3, "n": 5})
    for args, message in (
        ((x, w, v[:4]), r"input 'v' has shape \[4, 8\]: dim 0 is 4, but n is 5 here"),
        ((x, w[:7], v), r"input 'w' has shape \[7, 5\]: dim 0 is 7, but must be 8"),
        ((x, v, w), r"input 'w' has shape \[5, 8\]: dim 0 is 5, but must be 8"),
        ((x[:, :6], w, v), r"input 'x' has shape \[3, 6\]: dim 1 is 6"),
    ):
        with pytest.raises(InputError, match=message):
            result("adapter")(*args)


def test_a_dim_expression_that_no_size_solves() -> None:
    program = mi.trace(lambda x: mi.sum(mi.exp(x), axis=0), x=mi.tensor("4*n", "m"))
    r = mi.superoptimize(program, sizes={"n": 2, "m": 3}, budget=0.5, cache=False)
    x = np.ones((12, 2), np.float32)
    np.testing.assert_allclose(r(x), np.exp(x).sum(axis=0), rtol=1e-5)
    with pytest.raises(InputError, match=r"input 'x', dim 0: no size of n makes 4\*n equal 10"):
        r(x[:10])


def record_of(x: np.ndarray) -> np.ndarray:
    """Records of 5 bytes whose field "x" holds the array."""
    records = np.zeros(x.shape, dtype=[("b", "i1"), ("x", "f4")])
    records["x"] = x
    return records


class Elementwise(np.ndarray):
    """An array whose operators mean something else, as those of np.matrix do."""

    def __array_ufunc__(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("an operator of the subclass was called")


LAYOUTS: dict[str, Callable[[], np.ndarray]] = {
    "Fortran order": lambda: np.asfortranarray(X),
    "transposed": lambda: X.T.copy().T,
    "every other column": lambda: np.repeat(X, 2, axis=1)[:, ::2],
    "every other row": lambda: np.repeat(X, 2, axis=0)[::2],
    "columns reversed": lambda: X[:, ::-1].copy()[:, ::-1],
    "rows reversed": lambda: X[::-1].copy()[::-1],
    "both reversed": lambda: X[::-1, ::-1].copy()[::-1, ::-1],
    "one row repeated": lambda: np.broadcast_to(X[:1], X.shape),
    "one column repeated": lambda: np.broadcast_to(X[:, :1], X.shape),
    "misaligned": lambda: np.frombuffer(b"\0" + X.tobytes(), np.uint8)[1:].view(np.float32).reshape(X.shape),
    "field of records": lambda: record_of(X)["x"],
    "subclass": lambda: X.view(Elementwise),
    "memory map": lambda: np.memmap.__new__(np.memmap, "/dev/zero", np.float32, "r", 0, X.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_works(layout: str) -> None:
    x = LAYOUTS[layout]()
    np.testing.assert_allclose(result()(x), expected(np.array(x)), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["adapter", "several"])
def test_any_layout_of_every_input_works(name: str) -> None:
    r = result(name)
    sizes = dict.fromkeys(r.program.symbols(), 6)
    inputs = arrays(r.program, sizes)
    for change in (
        np.asfortranarray,
        lambda a: a[..., ::-1].copy()[..., ::-1],
        lambda a: np.repeat(a, 2, -1)[..., ::2],
    ):
        found = r(*(change(a) for a in inputs))
        check(r.program, list(found) if isinstance(found, tuple) else [found], inputs, sizes)


def test_inputs_are_not_written_and_may_be_read_only() -> None:
    x = X.copy()
    x.setflags(write=False)
    np.testing.assert_allclose(result()(x), expected(X), rtol=1e-5)
    assert (x == X).all()


def test_results_are_memory_of_their_own_and_writable() -> None:
    program = mi.trace(lambda x: (x, x, x.mT, mi.reshape(x, "m*n")), x=mi.tensor("m", "n"))
    found = mi.superoptimize(program, sizes={"m": 3, "n": 8}, budget=0.1, cache=False)(x := X.copy())
    for i, r in enumerate(found):
        assert r.flags.writeable
        assert not any(np.shares_memory(r, other) for other in (x, *found[:i]))


SPECIAL: dict[str, list[tuple[int, int, float]]] = {
    "nan": [(1, 2, math.nan)],
    "inf": [(1, 2, math.inf)],
    "-inf": [(1, 2, -math.inf)],
    "a row of -inf": [(0, i, -math.inf) for i in range(8)],
    "both": [(0, 1, math.inf), (0, 2, -math.inf), (2, 7, math.nan)],
    "large and tiny": [(0, 0, 1e30), (1, 0, -1e30), (2, 7, 1e-40)],
}


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("name", ["rows", "adapter", "several"])
def test_nan_and_infinity_are_where_the_program_has_them(name: str, special: str) -> None:
    r = result(name)
    sizes = {s: {"m": 3, "b": 3}.get(s, 8) for s in r.program.symbols()}
    inputs = arrays(r.program, sizes)
    for i, j, value in SPECIAL[special]:
        inputs[0][i, j] = value
    wanted = run_reference(r.program, inputs, sizes)
    tried = 0
    runs: list[Any] = [r._run, *(c.executable for c in r.graphs if c.executable is not None)]
    for run in runs:
        with np.errstate(all="ignore"):
            found = run(inputs, sizes)
        for w, f in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(np.isnan(f), np.isnan(w))
            scale = np.max(np.abs(w), initial=1.0, where=np.isfinite(w))
            np.testing.assert_allclose(f, w, rtol=1e-4, atol=1e-5 * scale, equal_nan=True)
        tried += 1
    assert tried >= 2


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (0, 0)])
def test_empty_dims(shape: tuple[int, int]) -> None:
    found = result()(np.empty(shape, np.float32))
    assert found.shape == shape
    product, total = result("several")(np.empty(shape, np.float32), np.ones(shape[1], np.float32))
    assert product.shape == shape
    assert (total == np.zeros(shape[0])).all()
    assert total.shape == shape[:1]


def test_empty_dims_between_and_in_expressions() -> None:
    x, w, v = arrays(adapter.trace(), {"b": 3, "n": 0})
    np.testing.assert_array_equal(result("adapter")(x, w, v), x)
    program = mi.trace(lambda x: mi.sum(x * x, axis=0), x=mi.tensor("4*n", 2))
    r = mi.superoptimize(program, sizes={"n": 2}, budget=0.3, cache=False)
    assert (r(np.ones((0, 2), np.float32)) == 0).all()


def test_rank_0() -> None:
    r = mi.superoptimize(mi.trace(lambda x, y: x * y, x=mi.tensor(), y=mi.tensor("n")), sizes={"n": 3}, budget=0.3)
    y = np.arange(4, dtype=np.float32)
    assert (r(np.array(2, np.float32), y) == 2 * y).all()
    assert (r(np.float32(2), y) == 2 * y).all()
    with pytest.raises(InputError, match="input 'x' has shape"):
        r(y, y)


# Arrays of other libraries.


class Interface:
    """An array that only NumPy's array interface describes."""

    def __init__(self, a: np.ndarray) -> None:
        self.kept = a
        self.__array_interface__ = a.__array_interface__


class Exported:
    """An array that only DLPack describes."""

    def __init__(self, a: np.ndarray) -> None:
        self.kept = a

    def __dlpack__(self, **options: Any) -> Any:
        return self.kept.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.kept.__dlpack_device__()


@pytest.mark.parametrize("kind", [Interface, Exported])
def test_arrays_by_their_interface(kind: type) -> None:
    np.testing.assert_allclose(result()(kind(X)), expected(X), rtol=1e-5)
    np.testing.assert_allclose(result()(kind(X.T.copy().T)), expected(X), rtol=1e-5)
    with pytest.raises(InputError, match="input 'x' has dtype float64"):
        result()(kind(X.astype(np.float64)))


class NoData:
    def __init__(self) -> None:
        self.__array_interface__ = {"shape": (3, 8), "typestr": "<f4"}


class NoInterface:
    __array_interface__: Any = 5


class Raising:
    @property
    def __array_interface__(self) -> Any:
        raise KeyError("x")


class RaisingExport:
    def __dlpack__(self, **options: Any) -> Any:
        raise ZeroDivisionError

    def __dlpack_device__(self) -> Any:
        return (1, 0)


class NoCapsule(RaisingExport):
    def __dlpack__(self, **options: Any) -> Any:
        return 5


@pytest.mark.parametrize("kind", [NoData, NoInterface, Raising, RaisingExport, NoCapsule])
def test_broken_interfaces_are_input_errors(kind: type) -> None:
    with pytest.raises(InputError, match=f"input 'x': {kind.__name__} cannot be read in place"):
        result()(kind())


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    t = torch.from_numpy(X.copy())
    versions = {
        "plain": t,
        "gradient": t.clone().requires_grad_(),
        "parameter": torch.nn.Parameter(t.clone()),
        "transposed": t.T.contiguous().T,
        "slice": torch.repeat_interleave(t, 2, dim=1)[:, ::2],
        # negated when read: its memory holds the opposite
        "negated": torch._neg_view(-t),
    }
    for name, x in versions.items():
        found = result()(x)
        assert isinstance(found, torch.Tensor), name
        assert not found.requires_grad
        np.testing.assert_allclose(found.numpy(), expected(X), rtol=1e-5, err_msg=name)
    assert result()(torch.empty(0, 8)).shape == (0, 8)
    for x in (t.double(), t.to(torch.bfloat16), t.to("meta"), t.to_sparse(), t.int()):
        with pytest.raises(InputError, match="input 'x'"):
            result()(x)
    product, total = result("several")(t, torch.ones(8))
    assert isinstance(product, torch.Tensor)
    assert isinstance(total, torch.Tensor)


def test_torch_tensors_are_read_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    seen: list[int] = []
    r = mi.superoptimize(rows, budget=0.5, cache=False)

    def run(inputs: list[np.ndarray], sizes: dict[str, int]) -> list[np.ndarray]:
        seen.append(inputs[0].__array_interface__["data"][0])
        kept.append(r.reference(inputs, sizes)[0])
        return [kept[-1]]

    kept: list[np.ndarray] = []
    monkeypatch.setattr(r, "_runners", [run] * len(r._runners))
    t = torch.ones(3, 8)
    found = r(t)
    assert seen == [t.data_ptr()]
    assert found.data_ptr() == kept[0].__array_interface__["data"][0]


def test_torch_and_numpy_mixed_with_negative_strides() -> None:
    torch = pytest.importorskip("torch")
    program = mi.trace(lambda x, y: (y, x + y), x=mi.tensor("m", "n"), y=mi.tensor("m", "n"))
    r = mi.superoptimize(program, sizes={"m": 2, "n": 2}, budget=0.1, cache=False)
    y, total = r(torch.zeros(3, 8), X[:, ::-1])
    assert (y.numpy() == X[:, ::-1]).all()
    assert (total.numpy() == X[:, ::-1]).all()


# Options of superoptimize.

OPTIONS: list[tuple[type[MirageError], str, dict[str, Any]]] = [
    *((BudgetError, "budget=", {"budget": b}) for b in (0, -1, math.nan, math.inf, "3", None, True, 10**400)),
    *((UnknownTarget, "target", {"target": t}) for t in ("tpu", "cuda:sm_1", "", None, 5)),
    *((UnknownPruner, "pruner", {"pruner": p}) for p in ("x", "", 5, True)),
    *((SearchError, "max_kernels=", {"max_kernels": n}) for n in (0, "2", 1.5, None)),
    *((SearchError, "max_operators=", {"max_operators": n}) for n in (0, -3, "2", 1.5)),
    *((SearchError, "canonical=", {"canonical": c}) for c in ("no", 1, None)),
    *((SearchError, "is not a concurrent.futures.Executor", {"executor": e}) for e in (object(), 2, "spawn")),
    *((SearchError, "seed=", {"seed": s}) for s in (-1, "a", None, 1.5, True)),
    *((CacheError, "cache=", {"cache": c}) for c in (None, "yes", 0)),
    *((DimError, "'n'", {"sizes": {"m": 3, "n": n}}) for n in (0, -2, "3", 3.0, True, None, np.array([1, 2]))),
    *((DimError, "sizes: rows at m=", {"sizes": {"m": n, "n": 4}}) for n in (10**10, 10**30)),
    *((DimError, "is not a mapping", {"sizes": s}) for s in (5, [1], "n=3")),
    (DimError, "'q' is not a dim of rows; its dims are m, n", {"sizes": {"m": 3, "n": 4, "q": 1}}),
    (DimError, "1 is not a dim", {"sizes": {1: 2}}),
]


@pytest.mark.parametrize(("error", "message", "options"), OPTIONS)
def test_wrong_options(error: type[MirageError], message: str, options: dict[str, Any]) -> None:
    with pytest.raises(error) as e:
        mi.superoptimize(rows, **{"budget": 0.2, "cache": False, **options})
    assert message in str(e.value)


def test_missing_sizes_are_named() -> None:
    with pytest.raises(DimError, match="dim 'm' of rows needs a positive size to tune at"):
        mi.superoptimize(rows.trace(), budget=0.2, cache=False)
    with pytest.raises(DimError, match="dim 'n' of rows"):
        mi.superoptimize(rows.trace(), sizes={"m": 3}, budget=0.2, cache=False)


@pytest.mark.parametrize("sizes", [{"m": np.int64(3), "n": 4}, {"m": 3}])
def test_sizes_that_work(sizes: dict[str, Any]) -> None:
    r = mi.superoptimize(rows, sizes=sizes, budget=0.2, cache=False)
    assert r.sizes == {"m": 3, "n": sizes.get("n", 5)}
    assert all(type(n) is int for n in r.sizes.values())


@pytest.mark.parametrize("thing", [5, None, "x", lambda x: x, np.ones(3)])
def test_what_is_no_program(thing: Any) -> None:
    with pytest.raises(TraceError, match="is not a program"):
        mi.superoptimize(thing)
    with pytest.raises(TraceError, match="is not a program"):
        api.verify(thing, rows)


def branches(x: Any) -> Any:
    return x if x else -x


UNTRACEABLE: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda x: 5, TraceError, "program: returns a int"),
    (branches, TraceError, "truth value"),
    (lambda x: x @ x, ShapeError, "matmul"),
    (lambda x: float(x), TraceError, "float"),
    # mistakes of the function itself stay what they are
    (lambda x: x.nothing, AttributeError, "nothing"),
    (lambda x: 1 / 0, ZeroDivisionError, "division"),
]


@pytest.mark.parametrize(("fn", "error", "message"), UNTRACEABLE)
def test_functions_that_do_not_trace(fn: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        mi.superoptimize(mi.program(x=mi.tensor("m", "n"))(fn), sizes={"m": 2, "n": 3}, budget=0.2)


def test_unknown_dtypes() -> None:
    for dtype in ("int4", "float8", "half", "x", None, 5):
        with pytest.raises(DTypeError, match="is not supported"):
            mi.tensor("m", dtype=dtype)  # type: ignore[arg-type]
    for dtype in ("int32", "int64", "bool"):
        with pytest.raises(DTypeError, match=f"input 'x' is {dtype}; only float32, .* are superoptimized: cast it"):
            mi.trace(lambda x: x + x, x=mi.tensor("m", dtype=dtype))
    with pytest.raises(DTypeError, match="one dtype"):
        mi.trace(lambda x, y: (x, y), x=mi.tensor("m"), y=mi.tensor("m", dtype="float64"))


def test_a_program_without_axis_form_says_why() -> None:
    def straddling(x: Any) -> Any:
        return mi.reshape(mi.reshape(x, (2, 3, "n")), (3, 2, "n"))

    with pytest.raises(mi.MirageError, match=r"the factor 2 straddles the new dim 3: .* reshape along factors"):
        mi.superoptimize(mi.trace(straddling, x=mi.tensor(6, "n")), sizes={"n": 3}, budget=0.2)
