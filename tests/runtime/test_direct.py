"""Direct calls: C code from the arrays to the result equals the other ways, counts references right, and may decline."""

from __future__ import annotations

import ctypes
import gc
import sys
import sysconfig
import weakref
from typing import Any

import numpy as np
import pytest

from mirage.ir.interpret import run_reference
from mirage.ir.types import DTYPES
from mirage.kernels.cpu.launch import direct, memory
from mirage.kernels.cpu.launch.direct import DirectCalls
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.runtime.calls import Caller
from tests.api.small import arrays
from tests.kernels.cpu.launch.test_packing import executable as packed_executable
from tests.kernels.cpu.launch.test_packing import make
from tests.kernels.kernels import bound, error, in_threads
from tests.runtime.test_calls import arguments_of, caller, wanted

pytestmark = pytest.mark.skipif(
    direct._library() is None, reason="no direct calls with this interpreter or without a compiler"
)


def others(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls with arrays of NumPy that are not direct from now on."""
    return arguments_of("_with_numpy", monkeypatch)


def packed(name: str, dtype: str = "float32") -> tuple[Caller, CpuExecutable]:
    """A kernel whose constants are packed."""
    program, graph = make(name, dtype)
    exe = packed_executable(graph, 8)
    return Caller(program, lambda sizes: exe), exe


@pytest.mark.parametrize("name", ["adapter", "rows", "several"])
def test_the_second_call_of_a_layout_is_direct(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = others(monkeypatch)
    call = caller(name)
    for n in (1, 5, 8):
        for seed in range(3):
            inputs = arrays(call.program, dict.fromkeys(call.program.symbols(), n), seed)
            want = wanted(name, *inputs)
            outs = tuple(np.full_like(w, np.nan) for w in want)
            found = call(inputs)
            assert call(tuple(inputs), outs) is (outs if len(outs) > 1 else outs[0])
            for f, o, w in zip(found if len(want) > 1 else [found], outs, want, strict=True):
                np.testing.assert_allclose(f, w, rtol=1e-4, atol=1e-5)
                np.testing.assert_array_equal(o, f)
                assert f.flags.owndata
    # the first call of each, and arguments in a list
    assert len(seen) == 3 + 9 - 3 + 3


@pytest.mark.parametrize("name", ["plain", "gated", "experts", "merged"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_packed_constants(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, exe = packed(name, dtype)
    sizes = {s: {"b": 3, "e": 2, "n": 45, "k": 37}[s] for s in call.program.symbols()}
    first, second = (tuple(arrays(call.program, sizes, seed)) for seed in (0, 1))
    for given in (first, second):
        call(given)
    seen = others(monkeypatch)
    for given in (first, second, first, first, second):
        want = run_reference(call.program, given, sizes, "float64")
        assert error([call(given)], want) < bound(dtype)
    # contents that have changed, as whoever changes them says
    first[-1][...] = second[-1]
    exe.forget()
    assert error([call(first)], run_reference(call.program, first, sizes, "float64")) < bound(dtype)
    assert not seen


def test_layers_find_their_copies_without_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    call, exe = packed("plain")
    sizes = {"b": 3, "n": 64, "k": 32}
    x, w = arrays(call.program, {**sizes, "k": 20 * 32})
    x, weights = np.ascontiguousarray(x[:, :32]), w.reshape(20, 32, 64)
    layers = [(x, weights[i]) for i in range(20)]
    want = [run_reference(call.program, given, sizes, "float64") for given in layers]
    found = 0
    get = type(exe._copies[0]).get

    def counted(*args: Any) -> Any:
        nonlocal found
        found += 1
        return get(*args)

    monkeypatch.setattr(type(exe._copies[0]), "get", counted)
    for _ in range(3):
        call(layers[0])
    before = found
    for _ in range(10):
        for given, wanted_here in zip(layers, want, strict=True):
            assert error([call(given)], wanted_here) < bound("float32")
    # each of the others once: at equal distances, no two share a place
    assert found - before == 19
    exe.forget()
    before = found
    call(layers[0])
    assert found == before + 1


def test_packed_copies_go_with_their_arrays() -> None:
    call, exe = packed("plain")
    (copies,) = exe._copies
    x, w = arrays(call.program, {"b": 3, "n": 45, "k": 37})
    for _ in range(3):
        call((x, w))
    (entry,) = copies._copies.values()
    memory = weakref.ref(entry.copy.packed)
    del entry, w
    gc.collect()
    assert memory() is None and not len(copies)
    # whatever array is where the other one was has a copy of its own
    for seed in range(1, 6):
        given = tuple(arrays(call.program, {"b": 3, "n": 45, "k": 37}, seed))
        assert error([call(given)], run_reference(call.program, given, {"b": 3, "n": 45, "k": 37}, "float64")) < 1e-5


def test_an_error_on_the_way_is_raised_and_the_next_call_works(monkeypatch: pytest.MonkeyPatch) -> None:
    call, exe = packed("plain")
    given = tuple(arrays(call.program, {"b": 3, "n": 45, "k": 37}))
    want = call(given)
    exe.forget()

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("no copy")

    with monkeypatch.context() as m:
        m.setattr(type(exe._copies[0]), "find", broken)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError, match="no copy"):
                call(given)
    np.testing.assert_array_equal(call(given), want)


def test_a_call_from_within_a_call() -> None:
    """Finding a packed copy runs code of Python, such as another call."""
    call, exe = packed("plain")
    sizes = {"b": 3, "n": 45, "k": 37}
    given, inner = tuple(arrays(call.program, sizes)), tuple(arrays(call.program, sizes, 1))
    call(given)
    exe.forget()
    (copies,) = exe._copies
    pack = copies.packing.pack
    found: list[Any] = []

    class Packing(type(copies.packing)):  # type: ignore[misc]
        def pack(self, *args: Any) -> Any:
            copies.packing = before
            # not with the same copy, whose lock is held
            found.append(call._direct.call(inner, None))
            return pack(*args)

    before = copies.packing
    copies.packing = Packing(before.input, before.tensor, before.axes, before.tile)
    assert error([call(given)], run_reference(call.program, given, sizes, "float64")) < 1e-5
    assert found == [None]
    assert error([call(inner)], run_reference(call.program, inner, sizes, "float64")) < 1e-5


def test_references_are_counted() -> None:
    call = caller("several")
    inputs = tuple(arrays(call.program, {"m": 3, "n": 5}))
    out = call(inputs)
    call(inputs, out)
    shapes = next(iter(call._numpy.values()))
    assert shapes is not None
    watched = [None, np.empty, DTYPES["float32"], *inputs, inputs, *out, out, *shapes.shapes]
    gc.collect()
    before = [sys.getrefcount(o) for o in watched]
    for _ in range(1000):
        assert call._direct.call(inputs, None) is not None
        assert call._direct.call(inputs, out) is out
        assert call._direct.call(inputs[:1], None) is None
        assert call._direct.call((*inputs[:1], "y"), None) is None
    assert all(abs(sys.getrefcount(o) - n) < 100 for o, n in zip(watched, before, strict=True))


def test_what_is_declined() -> None:
    call = caller("adapter")
    x, w, v = arrays(call.program, {"b": 3, "n": 5})
    out = np.empty_like(x)
    call((x, w, v))
    call((x, w, v), out)
    run = call._direct.call
    assert run((x, w, v), None) is not None and run((x, w, v), out) is out and run((x, w, v), (out,)) is out
    frozen = out.copy()
    frozen.flags.writeable = False
    shifted = np.frombuffer(bytes(x.nbytes + 1), np.uint8)[1:].view(np.float32).reshape(x.shape)

    class Kind(np.ndarray):
        pass

    for wrong in (
        [x, w, v], (), (x,), (x, w, v, v), (x, w, None), (x, w, v.astype(np.float64)), (x[0], w, v), (x[:2], w, v),
        (shifted, w, v), (x, w, v.view(Kind)), (x.T.copy().T, w, v), (x, w, 3), (x, w, v.astype(">f4")),
    ):  # fmt: skip
        assert run(wrong, None) is None
    for wrong_out in (frozen, x, w, v, (), (out, out), [out], out[:2], out.astype(np.float64), shifted, "out", x[::-1]):
        assert run((x, w, v), wrong_out) is None
    # memory that only touches an argument's
    whole = np.empty((6, 8), np.float32)
    whole[:3] = x
    assert run((whole[:3], w, v), whole[3:]) is not None
    assert run((whole[:3], w, v), whole[2:5]) is None


def test_more_layouts_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    call = caller("rows")
    for _ in range(2):
        for m in range(1, 200):
            x = np.ones((m, 4), np.float32)
            np.testing.assert_allclose(call((x,)), 0.25, rtol=1e-6)
    seen = others(monkeypatch)
    np.testing.assert_allclose(call((x,)), 0.25, rtol=1e-6)
    assert not seen


def test_a_program_that_is_dropped_leaves_nothing() -> None:
    call, exe = packed("plain")
    given = tuple(arrays(call.program, {"b": 3, "n": 45, "k": 37}))
    call(given)
    call(given)
    kept: list[weakref.ref[Any]] = [weakref.ref(exe), weakref.ref(call._direct)]
    del call, exe
    gc.collect()
    assert [r() for r in kept] == [None, None]


def test_from_several_threads() -> None:
    call, _ = packed("gated")
    sizes = {"b": 3, "n": 45, "k": 37}
    failures: list[int] = []

    def work(seed: int) -> None:
        for _ in range(100):
            given = tuple(arrays(call.program, {**sizes, "b": seed + 1}, seed))
            want = run_reference(call.program, given, {**sizes, "b": seed + 1}, "float64")
            out = np.empty_like(want[0], np.float32)
            if max(error([call(given)], want), error([call(given, out)], want)) > 1e-5:
                failures.append(seed)

    in_threads(work)
    assert not failures


@pytest.mark.parametrize("name", ["plain", "transposed"])
def test_calls_again_and_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a tuner makes them: direct where they can be, and the same results where they cannot."""
    call, exe = packed(name)
    sizes = {"b": 3, "n": 45, "k": 37}
    x, w = arrays(call.program, sizes)
    want = run_reference(call.program, (x, w), sizes, "float64")
    shifted = np.frombuffer(b"x" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
    in_python: list[object] = []
    way = CpuExecutable.__call__

    def spy(self: CpuExecutable, *args: Any) -> list[np.ndarray]:
        in_python.append(self)
        return way(self, *args)

    monkeypatch.setattr(CpuExecutable, "__call__", spy)
    for given, expected in (((x, w), 0), ((shifted, w), 3)):
        run = exe.prepared(given, sizes)
        for _ in range(3):
            found = run()
            assert error(found if expected else [found], want) < 1e-5
        assert len(in_python) == expected


def test_arrays_that_are_laid_out_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory.arrays_known()
    names = [name for name, *_ in memory._Fields._fields_]
    for k in range(len(names) - 1):
        # two fields of one size in each other's place
        kinds = {name: kind for name, kind, *_ in memory._Fields._fields_}
        swapped = names.copy()
        swapped[k], swapped[k + 1] = names[k + 1], names[k]
        other = type("Fields", (ctypes.Structure,), {"_fields_": [(n, kinds[names[i]]) for i, n in enumerate(swapped)]})
        assert not memory.arrays_known(other)
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: 1)
    assert not memory.arrays_known()
    monkeypatch.undo()
    monkeypatch.setattr(sys.implementation, "name", "other")
    assert not memory.arrays_known()


@pytest.mark.parametrize("why", ["compiler", "arrays"])
def test_where_there_are_none(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    direct._library.cache_clear()
    if why == "compiler":
        monkeypatch.setenv("CC", "no-such-compiler")
    else:
        monkeypatch.setattr(direct, "ARRAYS_KNOWN", False)
    try:
        assert direct._library() is None
        add = DirectCalls([np.dtype(np.float32)], [np.dtype(np.float32)])
        assert add.call((np.ones(3, np.float32),), None) is None
        assert not add._start(1)
    finally:
        direct._library.cache_clear()
