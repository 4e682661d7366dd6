"""Calls by the short way equal those by the general one; results in given memory; caches that stay small."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import InputError
from mirage.ir.interpret import run_reference
from mirage.ir.types import DTYPES
from mirage.kernels.cpu.launch import memory
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.schedules.scheduler import default_schedule
from mirage.mugraph.degree import analyze
from mirage.runtime import calls, leases
from mirage.runtime.calls import Caller
from mirage.runtime.outputs import Overlap
from tests.api.small import adapter, arrays, rows, several
from tests.kernels.kernels import in_threads, single_kernel

FUNCTIONS = {f.name: f for f in (adapter, rows, several)}
X = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)


@functools.cache
def executable(name: str) -> CpuExecutable:
    """The program as one kernel."""
    f = FUNCTIONS[name]
    graph = single_kernel(f.trace())
    sizes = f.sizes["default"]
    return CpuExecutable(graph, default_schedule(graph, sizes, 1 << 20), analyze(graph), sizes)


def caller(name: str) -> Caller:
    return Caller(FUNCTIONS[name].trace(), lambda sizes: executable(name))


def wanted(name: str, *inputs: np.ndarray) -> list[np.ndarray]:
    program = FUNCTIONS[name].trace()
    return run_reference(program, inputs, caller(name)._binder.bind([a.shape for a in inputs]))


def general(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is called by the general way from now on."""
    return arguments_of("_general", monkeypatch)


def arguments_of(way: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of all calls that a caller makes in this way from now on."""
    seen: list[Any] = []
    call = getattr(Caller, way)

    def spy(self: Caller, given: Any, out: Any) -> Any:
        seen.append(given)
        return call(self, given, out)

    monkeypatch.setattr(Caller, way, spy)
    return seen


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_short_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = general(monkeypatch)
    call = caller(name)
    for n in (1, 5, 8):
        inputs = arrays(call.program, dict.fromkeys(call.program.symbols(), n), seed=n)
        for _ in range(2):
            found = call(inputs)
            found = found if isinstance(found, tuple) else (found,)
            for f, w in zip(found, wanted(name, *inputs), strict=True):
                np.testing.assert_allclose(f, w, rtol=1e-4, atol=1e-5)
                assert f.flags.owndata and f.flags.c_contiguous
    assert not seen


def test_results_are_of_their_own_memory() -> None:
    call = caller("rows")
    first = call([X])
    kept = first.copy()
    second = call([X + 1])
    assert not np.shares_memory(first, second)
    np.testing.assert_array_equal(first, kept)


def odd(a: np.ndarray) -> np.ndarray:
    """The same array at an address that is no multiple of 4."""
    raw = np.zeros(a.nbytes + 1, np.uint8)
    found = raw[1:].view(np.float32).reshape(a.shape)
    found[...] = a
    return found


GENERAL: dict[str, Callable[[], np.ndarray]] = {
    "misaligned": lambda: odd(X),
    "last axis reversed": lambda: X[:, ::-1],
    "one column repeated": lambda: np.broadcast_to(X[:, :1], X.shape),
    "subclass": lambda: X.view(np.recarray),
    "empty": lambda: X[:0],
}
SHORT: dict[str, Callable[[], np.ndarray]] = {
    "rows reversed": lambda: X[::-1],
    "every other row": lambda: np.repeat(X, 2, 0)[::2],
    "one row repeated": lambda: np.broadcast_to(X[:1], X.shape),
    "part of rows": lambda: np.hstack([X, X])[:, 3:11],
    "read-only": lambda: np.frombuffer(X.tobytes(), np.float32).reshape(X.shape),
}


@pytest.mark.parametrize("layout", [*GENERAL, *SHORT])
def test_both_ways_alternate(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An aligned array of the same layout prepares a call that a misaligned one must not take."""
    seen = general(monkeypatch)
    call = caller("rows")
    x = {**GENERAL, **SHORT}[layout]()
    for given in (X, x, X, x):
        np.testing.assert_allclose(call([given]), wanted("rows", np.asarray(given))[0], rtol=1e-5, atol=1e-6)
    assert len(seen) == (2 if layout in GENERAL else 0)


def test_errors_after_a_prepared_call() -> None:
    call = caller("adapter")
    x, w, v = arrays(call.program, {"b": 3, "n": 5})
    call([x, w, v])
    for wrong, message in (
        ([x, w], "takes 3 arrays"),
        ([x, w, v, v], "takes 3 arrays"),
        ([x, w, v[:4]], "input 'v' has shape"),
        ([x, w, v.astype(np.float64)], "input 'v' has dtype float64"),
        ([x[0], w, v], "input 'x' has shape"),
        ([x, w, None], "input 'v': NoneType"),
        ([np.ma.masked_array(x), w, v], "masked"),
    ):
        for _ in range(2):
            with pytest.raises(InputError, match=message):
                call(wrong)


def test_caches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_KEPT", 3)
    call = caller("rows")
    for m in range(1, 20):
        x = np.ones((m, 4), np.float32)
        np.testing.assert_allclose(call([x]), 0.25, rtol=1e-6)
    assert len(call._numpy) == 3


def test_calls_from_several_threads() -> None:
    call = caller("adapter")
    failures: list[object] = []

    def work(seed: int) -> None:
        for n in range(1, 25):
            inputs = arrays(call.program, {"b": n % 3 + 1, "n": n}, seed)
            out = np.empty_like(inputs[0])
            want = wanted("adapter", *inputs)[0]
            for found in (call(inputs), call(inputs, out)):
                if not np.allclose(found, want, rtol=1e-4, atol=1e-4):
                    failures.append((seed, n))

    in_threads(work)
    assert not failures


# Large results.


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LARGE", 64)
    monkeypatch.setattr(leases, "_free", deque())
    monkeypatch.setattr(leases, "KEPT_BYTES", 0)


@pytest.mark.usefixtures("small_is_large")
def test_memory_of_large_results_is_used_again() -> None:
    call = caller("rows")
    seen = []
    for factor in range(1, 5):
        found = call([factor * X])
        seen.append(memory.address(found))
        np.testing.assert_allclose(found, wanted("rows", factor * X)[0], rtol=1e-5)
        assert found.flags.writeable
        del found
    assert len(set(seen)) == 1
    # another size, and back
    call([X[:2]])
    assert memory.address(call([X])) == seen[0]


@pytest.mark.usefixtures("small_is_large")
@pytest.mark.parametrize("name", DTYPES)
def test_large_results_of_every_type(name: str) -> None:
    """The array interface, by which memory is kept, has no name for bfloat16."""
    a = leases.lease((3, 50), DTYPES[name])
    at = memory.address(a)
    assert a.dtype == DTYPES[name] and a.shape == (3, 50) and a.flags.c_contiguous
    del a
    assert memory.address(leases.lease((50, 3), DTYPES[name])) == at


HOLD: dict[str, Callable[[np.ndarray], Any]] = {
    "itself": lambda a: a,
    "view": lambda a: a[1:, ::2],
    "view of a view": lambda a: a.T[2:][::-1],
    "reshaped": lambda a: a.reshape(-1),
    "base": lambda a: a.base,
    "buffer": lambda a: a.data,
    "subclass": lambda a: a.view(np.recarray),
    "torch": lambda a: pytest.importorskip("torch").from_numpy(a)[1:],
    "exported": lambda a: pytest.importorskip("torch").from_dlpack(a),
}


@pytest.mark.usefixtures("small_is_large")
@pytest.mark.parametrize("hold", HOLD)
def test_memory_that_somebody_sees_is_not_used_again(hold: str) -> None:
    call = caller("rows")
    result = call([X])
    at, kept = memory.address(result), HOLD[hold](result)
    before = np.asarray(kept).copy()
    del result
    others = [call([i * X]) for i in range(2, 6)]
    assert at not in {memory.address(o) for o in others}
    np.testing.assert_array_equal(np.asarray(kept), before)
    del kept, others
    assert len(leases._free) <= leases.KEPT


@pytest.mark.usefixtures("small_is_large")
def test_large_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    call = caller("rows")
    t, seen = torch.from_numpy(X.copy()), []
    for _ in range(3):
        found = call([t])
        assert (found.dtype, tuple(found.shape)) == (torch.float32, X.shape)
        np.testing.assert_allclose(found.numpy(), wanted("rows", X)[0], rtol=1e-5)
        seen.append(found.data_ptr())
        view = found[1]
        del found
        assert call([t]).data_ptr() != seen[-1]
        del view
    assert len(set(seen)) <= 2


@pytest.mark.usefixtures("small_is_large")
def test_large_results_in_several_threads() -> None:
    call = caller("rows")
    failures: list[int] = []

    def work(seed: int) -> None:
        kept = []
        for i in range(50):
            x = np.full((3 + i % 2, 8), seed, np.float32)
            x[:, 0] += 1
            kept.append((call([x]), wanted("rows", x)[0]))
            if i % 3 == 0 and any(not np.allclose(f, w) for f, w in kept):
                failures.append(seed)
            kept = kept[-2:]

    in_threads(work)
    assert not failures


# Given memory.

OUT: dict[str, Callable[[], np.ndarray]] = {
    "contiguous": lambda: np.full((3, 8), np.nan, np.float32),
    "rows apart": lambda: np.full((3, 20), np.nan, np.float32)[:, 5:13],
    "rows reversed": lambda: np.full((3, 8), np.nan, np.float32)[::-1],
    "Fortran order": lambda: np.full((8, 3), np.nan, np.float32).T,
    "every other column": lambda: np.full((3, 16), np.nan, np.float32)[:, ::2],
    "misaligned": lambda: odd(X),
    "subclass": lambda: np.zeros((3, 8), np.float32).view(np.recarray),
}


@pytest.mark.parametrize("layout", OUT)
def test_results_are_written_in_place(layout: str) -> None:
    call = caller("rows")
    for given in (lambda o: o, lambda o: (o,), lambda o: [o]):
        out = OUT[layout]()
        around = out if out.base is None or isinstance(out, np.recarray) or layout == "misaligned" else out.base
        before = np.isnan(around).sum()
        assert call([X], given(out)) is out
        np.testing.assert_allclose(out, wanted("rows", X)[0], rtol=1e-5)
        # nothing beside it is written
        assert before == 0 or np.isnan(around).sum() == before - out.size


def test_several_results_in_given_memory() -> None:
    call = caller("several")
    x, y = arrays(call.program, {"m": 3, "n": 5})
    outs = np.empty((3, 5), np.float32), np.empty(3, np.float32)
    found = call([x, y], outs)
    assert all(f is o for f, o in zip(found, outs, strict=True))
    for o, w in zip(outs, wanted("several", x, y), strict=True):
        np.testing.assert_allclose(o, w, rtol=1e-5, atol=1e-6)
    # an empty dim is computed by NumPy
    outs = np.empty((0, 5), np.float32), np.empty(0, np.float32)
    assert call([x[:0], y], list(outs))[1] is outs[1]


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_results_over_the_arguments(shift: int) -> None:
    """As with NumPy's functions, the results are those for the arguments as they were."""
    call = caller("rows")
    both = np.zeros((5, 8), np.float32)
    x, out = both[:3], both[shift : shift + 3]
    x[...] = X
    call([X], np.empty_like(X))
    assert call([x], out) is out
    np.testing.assert_allclose(out, wanted("rows", X)[0], rtol=1e-5)
    # neighbours do not overlap
    x[...] = X
    beside = np.zeros((6, 8), np.float32)
    beside[:3] = X
    call([beside[:3]], beside[3:])
    np.testing.assert_allclose(beside[3:], wanted("rows", X)[0], rtol=1e-5)


def read_only() -> np.ndarray:
    a = np.empty((3, 8), np.float32)
    a.setflags(write=False)
    return a


WRONG: dict[str, tuple[Any, str]] = {
    "shape": (np.empty((3, 7), np.float32), r"rows: out has shape \[3, 7\], the result \[3, 8\]"),
    "rank": (np.empty(24, np.float32), r"out has shape \[24\]"),
    "dtype": (np.empty((3, 8)), "out has dtype float64, the result float32"),
    "byte order": (np.empty((3, 8), ">f4"), "out has dtype >f4"),
    "read-only": (read_only(), "out is read-only"),
    "broadcast": (np.lib.stride_tricks.as_strided(X.copy(), (3, 8), (0, 4)), "out: several elements share memory"),
    "count": ((X.copy(), X.copy()), "out has 2 arrays, the program 1 results"),
    "none": ((), "out has 0 arrays"),
    "list": ([[1.0]], "out: list is not an array"),
    "number": (3.0, "out: float is not an array"),
    "masked": (np.ma.masked_array(X.copy()), "out: is a masked array"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_take_the_result(case: str) -> None:
    call = caller("rows")
    out, message = WRONG[case]
    for _ in range(2):
        with pytest.raises(InputError, match=message):
            call([X], out)
    call([X], np.empty_like(X))


def test_results_that_share_memory_are_refused() -> None:
    call = caller("several")
    x, y = arrays(call.program, {"m": 3, "n": 5})
    memory = np.zeros((4, 5), np.float32)
    with pytest.raises(InputError, match=r"out\[1\] shares memory with another result"):
        call([x, y], (memory[:3], memory[2, :3]))
    call([x, y], (memory[:3], memory[3, :3]))
    with pytest.raises(InputError, match=r"out has 1 arrays, the program 2 results; pass a tuple of 2"):
        call([x, y], memory[:3])


def test_overlap_of_layouts() -> None:
    shapes, strides = [(2, 3), (2, 3)], [(-12, 4), (24, 8)]
    overlap = Overlap(shapes, strides, [4, 4], 1)
    # the argument takes bytes 88 to 112, as its rows go down, the result 44 from its address on
    assert overlap.found([100, 111])
    assert not overlap.found([100, 112])
    assert overlap.found([100, 45])
    assert not overlap.found([100, 44])
    assert not overlap.inside
    assert Overlap(shapes, [(12, 4), (4, 4)], [4, 4], 1).inside


# Tensors of torch.


def test_torch_by_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    call = caller("several")
    x, y = arrays(call.program, {"m": 3, "n": 5})
    want = wanted("several", x, y)
    seen = general(monkeypatch)
    tensors = torch.from_numpy(x.copy()), torch.nn.Parameter(torch.from_numpy(y.copy()))
    for given in (tensors, (tensors[0].T.contiguous().T[:, :], tensors[1])):
        for _ in range(2):
            found = call(given)
            assert all(type(f) is torch.Tensor and not f.requires_grad for f in found)
            for f, w in zip(found, want, strict=True):
                np.testing.assert_allclose(f.numpy(), w, rtol=1e-5, atol=1e-6)
    # columns apart are copied
    assert len(seen) == 2
    with torch.device("meta"):
        assert call(tensors)[0].device.type == "cpu"


def test_torch_out() -> None:
    torch = pytest.importorskip("torch")
    call = caller("rows")
    t, want = torch.from_numpy(X.copy()), wanted("rows", X)[0]
    for out in (torch.empty(3, 8), torch.empty(8, 3).T, torch.empty(3, 16)[:, ::2]):
        version = out._version
        assert call([t], out) is out
        np.testing.assert_allclose(out.numpy(), want, rtol=1e-5)
        assert out._version > version
    np.testing.assert_allclose(call([X], torch.empty(3, 8)).numpy(), want, rtol=1e-5)
    assert isinstance(call([t], np.empty_like(X)), np.ndarray)
    np.testing.assert_allclose(call([t], t).numpy(), want, rtol=1e-5)
    for wrong, message in (
        (torch.empty(3, 8, requires_grad=True), "requires a gradient"),
        (torch.empty(3, 8, dtype=torch.float64), "out has dtype float64"),
        (torch.empty(3, 7), r"out has shape \[3, 7\]"),
        (torch.empty(3, 1).expand(3, 8), "several elements share memory"),
        (torch._neg_view(torch.empty(3, 8)), "lazily negated"),
        (torch.empty(3, 8, device="meta"), "out: Tensor cannot be read in place"),
    ):
        with pytest.raises(InputError, match=message):
            call([t], wrong)


def test_torch_tensors_without_memory_are_refused() -> None:
    torch = pytest.importorskip("torch")
    call = caller("rows")
    t = torch.ones(3, 8)
    call([t])
    t.untyped_storage().resize_(0)
    with pytest.raises(InputError, match="input 'x': Tensor has no memory"):
        call([t])


def test_addresses() -> None:
    for a in (X, X[1:, 3:], X[::-1, ::-1], np.empty((0, 3)), np.array(1.0), np.broadcast_to(X[0], (2, 8))):
        assert memory.address_by_field(a) == memory.address_by_interface(a) == memory.address(a)
    for count in (1, 1000):
        a = memory.aligned(count, np.dtype(np.float64))
        assert (a.size, memory.address(a) % memory.LINE) == (count, 0)


def test_a_lazy_result_takes_out() -> None:
    @mi.superoptimized(x=mi.tensor("m", "n"), options={"budget": 0.5, "cache": False})
    def doubled(x: Any) -> Any:
        return x + x

    out = np.empty_like(X)
    assert doubled(X, out=out) is out
    np.testing.assert_array_equal(out, 2 * X)


def test_few_of_many_small_results_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What looks for memory looks through them."""
    monkeypatch.setattr(leases, "_free", deque())
    results = [leases.lease((64 * k,), np.dtype(np.uint8)) for k in range(1, leases.MOST + 10)]
    del results
    assert len(leases._free) == leases.MOST


def test_of_many_results_as_many_bytes_are_kept_as_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_free", deque())
    monkeypatch.setattr(leases, "KEPT_BYTES", 5 << 16)
    results = [leases.lease((1 << 16,), np.dtype(np.uint8)) for _ in range(8)]
    places = {memory.address(a) for a in results}
    del results
    assert len(leases._free) == 5
    # a little smaller or larger, as a cache grows: the same memory
    again = [leases.lease(((1 << 16) - k,), np.dtype(np.uint8)) for k in (0, 100)]
    assert {memory.address(a) for a in again} <= places
    assert len(leases._free) == 3
