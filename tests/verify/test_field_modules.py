"""Finite-field verification on arrays of another module than NumPy: same primes, seeds, verdicts and bounds."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import InputError
from mirage.frontends.attention import attention
from mirage.ir.axes import to_axes
from mirage.ir.functions import EXP, SQRT
from mirage.mugraph.degree import analyze
from mirage.mugraph.reference import reference_graph
from mirage.verify.equivalence import Verifier, verify_graph, verify_programs
from mirage.verify.field import FieldArithmetic, draw
from mirage.verify.primes import draw_primes
from mirage.verify.safety import degree_violation

PRIMES = draw_primes(0)
TESTS = 4


class DeviceArray:
    """An array that keeps to itself, as one of CuPy does: it meets only its own kind and scalars, and becomes an array
    of NumPy only where it is asked to (`get`).
    """

    def __init__(self, host: Any) -> None:
        self.host = np.asarray(host)

    def get(self) -> np.ndarray:
        return self.host

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise TypeError("implicit conversion to a NumPy array is not allowed")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *args: Any, **kwargs: Any) -> Any:
        assert method == "__call__" and ufunc is not np.matmul, "not seen by CuPy as its own"
        return _wrapped(ufunc(*map(_own, args), **kwargs))

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        if function not in _FUNCTIONS:
            return NotImplemented
        return _wrapped(function(*_own_all(args), **kwargs))

    def __getattr__(self, name: str) -> Any:
        if name not in (
            "all",
            "any",
            "astype",
            "dtype",
            "ndim",
            "ravel",
            "reshape",
            "shape",
            "size",
            "sum",
            "swapaxes",
            "transpose",
        ):
            raise AttributeError(name)
        found = getattr(self.host, name)
        return (lambda *a, **k: _wrapped(found(*a, **k))) if callable(found) and name != "dtype" else found

    def __len__(self) -> int:
        return len(self.host)

    def __bool__(self) -> bool:
        return bool(self.host)

    def __int__(self) -> int:
        return int(self.host)

    def __getitem__(self, index: Any) -> DeviceArray:
        return DeviceArray(self.host[_own_all(index) if isinstance(index, tuple) else _own(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.host[index] = _own(value)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))


def _own(value: Any) -> Any:
    """What an operation of device arrays computes with: their memory, and scalars; never an array of NumPy."""
    if isinstance(value, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    return value.host if isinstance(value, DeviceArray) else value


def _own_all(values: Any) -> Any:
    return type(values)(_own_all(v) if isinstance(v, tuple | list) else _own(v) for v in values)


def _wrapped(value: Any) -> Any:
    return DeviceArray(value)


_OPERATORS = (
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "mod",
    "floordiv",
    "neg",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "and",
    "or",
    "xor",
    "rshift",
    "lshift",
    "invert",
)


def _operator(name: str) -> Callable[..., Any]:
    def operator(self: DeviceArray, *other: Any) -> DeviceArray:
        return DeviceArray(getattr(np.asarray(self.host), name)(*map(_own, other)))

    return operator


for _name in _OPERATORS:
    setattr(DeviceArray, f"__{_name}__", _operator(f"__{_name}__"))

#: functions of NumPy that find CuPy's own by the type of their arguments
_FUNCTIONS = {np.argwhere, np.broadcast_to, np.concatenate, np.ones_like, np.repeat, np.zeros_like}


class DeviceModule:
    """The functions of a module of arrays that verification may call, on arrays that do not convert by themselves."""

    @staticmethod
    def asarray(value: Any, dtype: Any = None) -> DeviceArray:
        return value if isinstance(value, DeviceArray) else DeviceArray(np.array(value, dtype=dtype))

    @staticmethod
    def zeros(shape: Any, dtype: Any) -> DeviceArray:
        return DeviceArray(np.zeros(shape, dtype))

    @staticmethod
    def ones(shape: Any, dtype: Any) -> DeviceArray:
        return DeviceArray(np.ones(shape, dtype))

    @staticmethod
    def arange(stop: int, dtype: Any) -> DeviceArray:
        return DeviceArray(np.arange(stop, dtype=dtype))

    @staticmethod
    def where(*args: Any) -> DeviceArray:
        return DeviceArray(np.where(*map(_own, args)))

    @staticmethod
    def matmul(x: DeviceArray, y: DeviceArray) -> DeviceArray:
        return DeviceArray(np.matmul(_own(x), _own(y)))


@mi.program(x=mi.tensor("b", 24), g=mi.tensor(24), w=mi.tensor(24, "n"))
def norm_linear(x: Any, g: Any, w: Any) -> Any:
    return mi.rms_norm(x, g) @ w


@mi.program(q=mi.tensor("b", 2, "s", 4), k=mi.tensor("b", 2, "t", 4), v=mi.tensor("b", 2, "t", 4))
def heads(q: Any, k: Any, v: Any) -> Any:
    return attention(q, k, v)


@mi.program(q=mi.tensor("b", 2, "s", 4), k=mi.tensor("b", 1, "t", 4), v=mi.tensor("b", 1, "t", 4))
def shared_heads(q: Any, k: Any, v: Any) -> Any:
    return attention(q, mi.repeat(k, 2, axis=1), mi.repeat(v, 2, axis=1))


@mi.program(x=mi.tensor("b", 8), y=mi.tensor("b", 8), w=mi.tensor(16, "n"))
def joined(x: Any, y: Any, w: Any) -> Any:
    return mi.gelu(mi.concat([x, y], axis=-1) @ w)


PROGRAMS = [norm_linear, heads, shared_heads, joined]


def _cupy() -> Any:
    return pytest.importorskip("cupy")


#: the strict stand-in everywhere, CuPy where there is a device
MODULES = [
    pytest.param(lambda: DeviceModule, id="strict"),
    pytest.param(_cupy, id="cupy", marks=pytest.mark.gpu),
]


@pytest.fixture(params=MODULES)
def xp(request: pytest.FixtureRequest) -> Any:
    return request.param()


def test_stand_in_refuses_what_cupy_refuses() -> None:
    x = DeviceModule.asarray(np.arange(3))
    with pytest.raises(TypeError, match="implicit conversion"):
        np.asarray(x)
    with pytest.raises(TypeError, match="Unsupported type"):
        x + np.arange(3)
    with pytest.raises(TypeError, match="Unsupported type"):
        np.arange(3) * x
    with pytest.raises(TypeError, match="no implementation found"):
        np.take(x, 0)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.name)
@pytest.mark.parametrize("seed", [0, 3])
def test_certificates_are_those_of_numpy(xp: Any, program: mi.TensorFunction, seed: int) -> None:
    traced = program.trace()
    graph = reference_graph(to_axes(traced))
    found, wanted = Verifier(traced, seed, xp=xp), Verifier(traced, seed)
    certificate = found.check(graph)
    assert certificate.equal and certificate == wanted.check(graph)
    # the second check, with other primes and the test of degrees
    assert found.confirm(graph, certificate) == wanted.confirm(graph, certificate)


def test_differences_are_those_of_numpy(xp: Any) -> None:
    @mi.program(x=mi.tensor("b", 24), g=mi.tensor(24), w=mi.tensor(24, "n"))
    def wrong(x: Any, g: Any, w: Any) -> Any:
        return (x * g) @ w

    traced = norm_linear.trace()
    other = reference_graph(to_axes(wrong.trace()))
    certificate = verify_graph(traced, other, xp=xp)
    assert not certificate.equal and "for the program and" in certificate.checks[0].difference
    assert certificate == verify_graph(traced, other)
    assert verify_programs(traced, wrong.trace(), xp=xp) == verify_programs(traced, wrong.trace())


def test_degrees_are_tested(xp: Any) -> None:
    ap = to_axes(heads.trace())
    graph = reference_graph(ap)
    maximum = analyze(graph)
    assert maximum.sites and degree_violation(ap, graph, maximum, 1, xp) == ""


@pytest.mark.parametrize("k", [3, 40])
def test_contractions_and_inverses_are_those_of_numpy(xp: Any, k: int) -> None:
    roots = np.random.default_rng(1).integers(0, PRIMES.q, TESTS, dtype=np.int64)
    results = []
    for module in (np, xp):
        rng = np.random.default_rng(2)
        ar = FieldArithmetic({}, PRIMES, roots, 0, xp=module)
        x, y = (draw((5, k), TESTS, PRIMES, rng, module) for _ in range(2))
        r = ar.einsum(x, y, [0, 1], [2, 1], [0, 2])
        r = ar.div(ar.function(EXP, r), ar.add(ar.function(SQRT, ar.mul(r, r)), ar.constant(Fraction(1, 3))))
        # without a part mod q, a function takes all tests together
        r = ar.function(SQRT, r)
        zero = ar.div(r, ar.sub(r, r))
        results.append((r.p, r.q, zero.p, ar.invalid))
    for wanted, found in zip(*results, strict=True):
        np.testing.assert_array_equal(wanted, found.get())


@pytest.mark.parametrize("bad", ["cupy", None, object()])
def test_what_is_no_module_is_refused(bad: Any) -> None:
    with pytest.raises(InputError, match="pass the module numpy or cupy"):
        Verifier(norm_linear.trace(), xp=bad)
    with pytest.raises(InputError, match="pass the module numpy or cupy"):
        verify_programs(norm_linear.trace(), norm_linear.trace(), xp=bad)
