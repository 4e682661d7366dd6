"""The library version: its results against the program's, stability, memory, errors."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import mirage as mi
from mirage.errors import AxisError, DimError, InputError
from mirage.ir.axes import to_axes
from mirage.ir.functions import FUNCTIONS
from mirage.ir.interpret import run_reference
from mirage.ir.operator import REGISTRY
from mirage.ir.program import Program
from mirage.ir.types import DTYPES
from mirage.kernels.library import LibraryProgram
from mirage.kernels.library_calls import NUMPY
from mirage.search.accuracy import rounding
from tests.frontends.test_spec import PROGRAMS
from tests.ir.cases import programs
from tests.kernels.kernels import bound, error, random_inputs
from tests.mugraph.logs import CASES as LOGS
from tests.mugraph.logs import ROUNDING, inputs, largest_error
from tests.mugraph.logs import SIZES as LOG_SIZES
from tests.programs import retyped

SIZE = st.integers(1, 9)
FLOAT32 = bound("float32")


def library(program: Program) -> LibraryProgram:
    return LibraryProgram(to_axes(program))


def trace(fn: Callable[..., Any], **specs: Any) -> Program:
    return mi.trace(fn, "f", **specs)


def check(
    program: Program, sizes: Mapping[str, int], inputs: Sequence[np.ndarray] | None = None
) -> list[np.ndarray]:
    """The results, compared with the program in float64."""
    inputs = random_inputs(program, sizes) if inputs is None else inputs
    got = library(program)(inputs, sizes)
    assert all(g.dtype == DTYPES[program.dtype] and g.flags.writeable for g in got)
    found = error(got, run_reference(program, inputs, sizes, "float64"))
    assert found < bound(program.dtype), f"{program.name} {dict(sizes)}: {found}"
    return got


@pytest.mark.parametrize("name", ["one_kernel", "lse", "mean", "cross_entropy", "label_smoothing", "alone", "one_element"])
def test_logs_of_sums_of_exps_neither_overflow_nor_vanish(name: str) -> None:
    case = LOGS[name]
    for offset in (0.0, 1e4, -1e4):
        given = inputs(case, offset, LOG_SIZES)
        assert largest_error(case, given, library(case.program)(given, LOG_SIZES)[0]) < ROUNDING


def peak(run: Callable[[], object]) -> int:
    """Most bytes that NumPy holds at once during a call, beyond those before it."""
    run()
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# ---- meaning ----


@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=12)
@given(data=st.data())
def test_benchmark_programs(name: str, data: st.DataObject) -> None:
    """Right at any size, size 1 too, in every element type, and the inputs stay as they are."""
    program = retyped(PROGRAMS[name].trace(), data.draw(st.sampled_from(list(DTYPES))))
    sizes = {s: data.draw(st.one_of(st.just(1), SIZE), label=s) for s in program.symbols()}
    inputs = random_inputs(program, sizes)
    before = [x.copy() for x in inputs]
    for x in inputs:
        x.flags.writeable = False
    results = check(program, sizes, inputs)
    for x, y in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(x, y)
    assert not any(np.shares_memory(r, x) for r in results for x in inputs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_zero_sizes(name: str) -> None:
    program = PROGRAMS[name].trace()
    run = library(program)
    for zero in program.symbols():
        sizes = {s: 0 if s == zero else 3 for s in program.symbols()}
        inputs = random_inputs(program, sizes)
        got, want = run(inputs, sizes), run_reference(program, inputs, sizes)
        assert error(got, want) < FLOAT32


@given(program=programs(), data=st.data())
def test_random_programs(program: Program, data: st.DataObject) -> None:
    """As the reference, up to what rounding changes in the reference itself."""
    try:
        run = library(program)
    except AxisError:
        assume(False)
    sizes = {s: data.draw(st.integers(1, 3), label=s) for s in "abn"}
    inputs = random_inputs(program, sizes)
    rough = run_reference(program, inputs, sizes)
    exact = run_reference(program, inputs, sizes, "longdouble" if program.dtype == "float64" else "float64")
    eps = rounding(DTYPES[program.dtype], 64)
    with np.errstate(all="ignore"):
        for g, r, e in zip(run(inputs, sizes), rough, exact, strict=True):
            assert g.shape == r.shape
            # where the reference overflows, a shifted exp need not
            finite = np.isfinite(r) & np.isfinite(e)
            g, r, e = g[finite], r[finite], e[finite]
            tolerance = 16 * np.abs(r - e).max(initial=0) + eps * np.abs(e).max(initial=0)
            assert not (np.abs(g - e) > tolerance).any() and not np.isnan(g).any()


LAYOUTS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "transposed result": (lambda x, y: (x @ y).mT, {"x": ("m", "k"), "y": ("k", "n")}),
    "both transposed": (lambda x, y: x.mT @ y.mT, {"x": ("k", "m"), "y": ("n", "k")}),
    "rows that are not adjacent": (
        lambda x, y: mi.transpose(x, (1, 0, 2, 3)) @ mi.repeat(mi.reshape(y, ("b", 1, "k", "n")), "h", axis=1),
        {"x": ("h", "b", "m", "k"), "y": ("b", "k", "n")},
    ),
    "outer product": (lambda x, y: x @ y, {"x": ("m", 1), "y": (1, "n")}),
    "sums of one operand alone": (
        lambda x, y: mi.reshape(x, ("m", 1)) @ mi.repeat(mi.reshape(y, (1, 1)), "n", axis=1),
        {"x": ("m",), "y": ()},
    ),
    "repeated contraction": (
        lambda x, y: mi.repeat(x, "k", axis=1) @ y,
        {"x": ("m", 1), "y": ("k", "n")},
    ),
    "neither operand has all axes": (lambda x, y: mi.reshape(x, ("m", 1)) + y, {"x": ("m",), "y": ("n",)}),
    "broadcast result": (lambda x: mi.repeat(x, 3, axis=0), {"x": ("m", "n")}),
    "split and merged dims": (
        lambda x: mi.reshape(mi.transpose(mi.reshape(x, ("m", 2, "n")), (1, 0, 2)), ("2*m", "n")),
        {"x": ("m", "2*n")},
    ),
    "concat of a repeated operand": (
        lambda x, y: mi.concat([mi.repeat(x, "m", axis=0), y.mT], axis=1),
        {"x": (1, "n"), "y": ("k", "m")},
    ),
    "scalar": (lambda x: mi.sum(x, axis=(0, 1)) * 2 + 1, {"x": ("m", "n")}),
    "same result twice": (lambda x: (x + x, x + x), {"x": ("m", "n")}),
    "input as result": (lambda x: (x, x.mT), {"x": ("m", "n")}),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts(name: str, dtype: str) -> None:
    fn, specs = LAYOUTS[name]
    program = trace(fn, **{k: mi.tensor(*d, dtype=dtype) for k, d in specs.items()})
    for sizes in ({"b": 2, "h": 3, "k": 5, "m": 4, "n": 6}, dict.fromkeys("bhkmn", 1)):
        inputs = random_inputs(program, sizes)
        results = check(program, sizes, inputs)
        arrays = [*inputs, *results]
        for i, r in enumerate(results):
            assert not any(np.shares_memory(r, a) for j, a in enumerate(arrays) if j != i + len(inputs))


@settings(max_examples=25)
@given(m=SIZE, k=SIZE, n=SIZE, flips=st.tuples(st.booleans(), st.booleans()))
def test_strided_inputs(m: int, k: int, n: int, flips: tuple[bool, bool]) -> None:
    """Transposed, reversed and sliced arrays are read as they are."""
    program = trace(lambda x, y: mi.softmax(x @ y), x=mi.tensor("m", "k"), y=mi.tensor("k", "n"))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((k, 2 * m)).astype(np.float32).T[::2]
    y = rng.standard_normal((k, n)).astype(np.float32)
    check(program, {"m": m, "k": k, "n": n}, [a[::-1] if f else a for a, f in zip((x, y), flips, strict=True)])


def test_an_operand_that_is_read_again_is_not_overwritten() -> None:
    def fn(x: Any) -> Any:
        y = x + 1
        z = y * mi.sigmoid(y)
        return z - y, mi.exp(y), y / (1 + mi.square(y))

    check(trace(fn, x=mi.tensor("m", "n")), {"m": 5, "n": 7})


@pytest.fixture
def own_operator() -> Iterator[None]:
    """A user's operator whose function returns its argument, and one that NumPy runs on objects."""
    yield
    for name in ("lib_same", "lib_object"):
        REGISTRY.pop(name, None)
        FUNCTIONS.pop(name, None)


def test_functions_of_users(own_operator: None) -> None:
    """A function may return its argument, or be a ufunc without loops for the dtype."""
    same = mi.register_function("lib_same", lambda x: x, c_source="", c="lib_same")
    square = mi.register_function("lib_object", np.frompyfunc(lambda v: v * v, 1, 1), c_source="", c="lib_object")
    mi.elementwise("lib_same", lambda al, x: al.add(al.function(same, x), al.constant(1)))
    mi.elementwise("lib_object", lambda al, x: al.function(square, x))
    program = trace(
        lambda x: (mi.apply("lib_same", x), mi.apply("lib_object", x), x * 1), x=mi.tensor("m", "n")
    )
    inputs = random_inputs(program, {"m": 3, "n": 4})
    before = inputs[0].copy()
    check(program, {"m": 3, "n": 4}, inputs)
    np.testing.assert_array_equal(inputs[0], before)


# ---- stability ----


def _plain_softmax(x: Any) -> Any:
    e = mi.exp(x)
    return e / mi.sum(e, axis=-1, keepdims=True)


@pytest.mark.parametrize("softmax", [mi.softmax, _plain_softmax], ids=["softmax", "written out"])
@settings(max_examples=25)
@example(scale=1e4)
@example(scale=-3e4)
@given(scale=st.floats(-1e5, 1e5))
def test_large_logits(softmax: Callable[[Any], Any], scale: float) -> None:
    """Neither overflow nor 0 / 0: as the stable form, in whichever form the user writes it."""
    program = trace(lambda x, v: softmax(x) @ v, x=mi.tensor("m", "n"), v=mi.tensor("n", 8))
    stable = trace(lambda x, v: mi.softmax(x) @ v, x=mi.tensor("m", "n"), v=mi.tensor("n", 8))
    sizes = {"m": 4, "n": 16}
    x, v = random_inputs(program, sizes)
    x = (x * np.float32(scale)).astype(np.float32)
    (got,) = library(program)([x, v], sizes)
    assert np.isfinite(got).all()
    (want,) = run_reference(stable, [x, v], sizes)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_an_exp_whose_scale_matters_is_plain() -> None:
    """exp(x) + 1 changes with the scale of exp(x), so nothing may be subtracted."""
    program = trace(lambda x: mi.exp(x) + 1, x=mi.tensor("m", "n"))
    check(program, {"m": 3, "n": 4})
    (got,) = library(program)([np.full((1, 2), 1e4, np.float32)], {"m": 1, "n": 2})
    assert np.isposinf(got).all()


def test_two_maxima() -> None:
    """Each softmax has a maximum of its own; along different dims."""
    program = trace(
        lambda x: mi.softmax(x, axis=0) * mi.softmax(mi.softmax(x) * 1e4, axis=1), x=mi.tensor("m", "n")
    )
    x = random_inputs(program, {"m": 5, "n": 6})[0] * np.float32(1e4)
    check(program, {"m": 5, "n": 6}, [x])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_special_values(value: float) -> None:
    """As in the stable form: a row without a finite maximum is NaN, others with -inf are not."""
    program = trace(mi.softmax, x=mi.tensor("m", "n"))
    x = np.zeros((3, 4), np.float32)
    x[0, 1] = value
    x[2] = value
    (got,) = library(program)([x], {"m": 3, "n": 4})
    np.testing.assert_array_equal(got, run_reference(program, [x], {"m": 3, "n": 4})[0])


# ---- memory ----


def test_keys_and_values_are_not_copied() -> None:
    """Grouped-query attention needs the logits alone: nothing of the size of the keys."""
    program = PROGRAMS["gqa_decode"].trace()
    sizes = {"b": 1, "h": 2, "s": 1, "t": 2048}
    inputs, run = random_inputs(program, sizes), library(program)
    logits = 16 * 2048 * 4
    assert inputs[1].nbytes == 16 * logits
    assert peak(lambda: run(inputs, sizes)) < 2.5 * logits


def test_elementwise_operators_work_in_place() -> None:
    program = PROGRAMS["softmax"].trace()
    sizes = {"m": 256, "n": 1024}
    inputs, run = random_inputs(program, sizes), library(program)
    assert peak(lambda: run(inputs, sizes)) < 1.1 * inputs[0].nbytes


# ---- calls ----


def test_wrong_inputs() -> None:
    program = PROGRAMS["rms_norm"].trace()
    run, sizes = library(program), {"m": 2, "n": 3}
    x, w = random_inputs(program, sizes)
    with pytest.raises(InputError, match="takes 2 arrays, got 1"):
        run([x], sizes)
    with pytest.raises(InputError, match="input weight has dtype float64, not float32"):
        run([x, w.astype(np.float64)], sizes)
    with pytest.raises(InputError, match=r"input x has shape \(2, 3\), but the sizes make it \(2, 4\)"):
        run([x, w], {"m": 2, "n": 4})
    with pytest.raises(DimError, match="n"):
        run([x, w], {"m": 2})


def test_many_sizes_and_threads() -> None:
    """More bindings than are kept, from several threads at once."""
    program = PROGRAMS["mha_decode"].trace()
    run = library(program)

    def call(t: int) -> float:
        sizes = {"b": 1, "h": 2, "s": 3, "t": t}
        inputs = random_inputs(program, sizes, t)
        return error(run(inputs, sizes), run_reference(program, inputs, sizes, "float64"))

    with ThreadPoolExecutor(4) as threads:
        assert max(threads.map(call, [*range(1, 40), *range(1, 40)])) < FLOAT32


@pytest.mark.parametrize("axis", [(1,), (0, 2), (3,), (1, 3), (0,), ()])
@pytest.mark.parametrize("ufunc", [np.add, np.maximum])
def test_a_few_elements_are_reduced_as_numpy_does(ufunc: np.ufunc, axis: tuple[int, ...]) -> None:
    """Without its way of going through them one by one."""
    x = np.random.default_rng(0).standard_normal((2, 3, 300, 4)).astype(np.float32)
    x[0, 0, 0], x[1, :, 5, 1] = -np.inf, np.nan
    for initial in (None, -1e3, 0.0):
        reduce = NUMPY.reduction(ufunc, np.dtype(np.float32), initial)
        start = ufunc.identity if ufunc.identity is not None else -np.inf
        wanted = ufunc.reduce(x, axis=axis, initial=start if initial is None else initial)
        np.testing.assert_allclose(reduce(x, axis=axis), wanted, rtol=1e-5, atol=1e-5)
        out = np.empty_like(wanted)
        assert reduce(x, axis=axis, out=out) is out
        np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)
        # a result may be laid out in another order
        turned = np.empty(wanted.shape[::-1], np.float32).T
        assert reduce(x, axis=axis, out=turned) is turned
        np.testing.assert_allclose(turned, wanted, rtol=1e-5, atol=1e-5)
