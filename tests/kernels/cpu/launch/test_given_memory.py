"""Memory that callers give: for what operators hand on to one another, and for the results of library versions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import InputError
from mirage.ir.axes import to_axes
from mirage.ir.dims import evaluate
from mirage.ir.interpret import run_reference
from mirage.ir.types import DTYPES
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.library import LibraryProgram
from mirage.mugraph.degree import analyze
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.schedule import Schedule
from tests.kernels.cpu.emit.test_mixed import ATTENTION, attention
from tests.kernels.kernels import bound, cut, error, random_inputs, tiles
from tests.programs import retyped
from tests.sampled import crossed

T = mi.tensor


@pytest.mark.parametrize(("kind", "dtype"), crossed(ATTENTION, ["float32", "float16"]))
def test_kernels_and_library_calls_share_a_given_workspace(kind: tuple[bool, str], dtype: str) -> None:
    split, second = kind
    p, graph = attention(split=split, second=second)
    p, graph = retyped(p, dtype), replace(graph, dtype=dtype)
    exe = CpuExecutable(graph, tiles(graph, 16), analyze(graph))
    for t in (1, 40, 300):
        sizes = {"b": 1, "h": 2, "s": 3, "t": t}
        inputs = random_inputs(p, sizes)
        exact = run_reference(p, inputs, sizes, "float64")
        elements = evaluate(exe.workspace(), sizes)
        around = np.full(elements + 2, 7, DTYPES[dtype])
        assert error(exe(inputs, sizes, workspace=around[1:-1]), exact) < bound(dtype)
        assert around[0] == around[-1] == 7
        # and in memory of its own, as before and after
        assert error(exe(inputs, sizes), exact) < bound(dtype)
        with pytest.raises(InputError, match="pass a writable, contiguous array of workspace"):
            exe(inputs, sizes, workspace=np.empty(2, np.float32))
        read_only = np.empty(elements, DTYPES[dtype])
        read_only.flags.writeable = False
        with pytest.raises(InputError, match="writable"):
            exe(inputs, sizes, workspace=read_only)


def test_bound_calls_use_a_given_workspace() -> None:
    p, graph = attention(split=True, second="C")
    exe = CpuExecutable(graph, tiles(graph, 16), analyze(graph))
    sizes = {"b": 1, "h": 2, "s": 3, "t": 100}
    inputs = random_inputs(p, sizes)
    (exact,) = run_reference(p, inputs, sizes, "float64")
    out = np.empty(exact.shape, np.float32)
    arrays = [*inputs, out]
    call = exe.bind(sizes, [a.strides for a in arrays])
    assert call is not None
    addresses = [a.ctypes.data for a in arrays]
    for _ in range(2):
        out[...] = np.nan
        call.run(addresses, inputs, np.empty(evaluate(exe.workspace(), sizes), np.float32))
        assert error([out], [exact]) < bound("float32")
    out[...] = np.nan
    call.run(addresses, inputs)
    assert error([out], [exact]) < bound("float32")


def test_a_single_kernel_needs_no_workspace() -> None:
    p = mi.trace(lambda x: mi.softmax(x), "softmax", x=T("n", 64))
    graph = cut(p, [i for i, n in enumerate(to_axes(p).nodes) if n.op != "input"])
    exe = CpuExecutable(graph, tiles(graph, 16), analyze(graph))
    assert exe.workspace() == 0
    reference = reference_graph(to_axes(p))
    assert CpuExecutable(reference, Schedule(()), analyze(reference)).workspace() != 0


PROGRAMS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "elementwise": (lambda x, y: mi.silu(x) * y, dict(x=T("n", "m"), y=T("n", "m"))),
    "matmul": (lambda x, w: x @ w, dict(x=T("n", 8), w=T(8, "m"))),
    "transposed": (lambda x: mi.transpose(mi.exp(x), (1, 0)), dict(x=T("n", "m"))),
    "merged dims": (lambda x: mi.reshape(mi.exp(x), ("n*m",)), dict(x=T("n", "m"))),
    "repeated": (lambda x: mi.repeat(mi.exp(x), 3, axis=0), dict(x=T("n", "m"))),
    "twice": (lambda x: (mi.exp(x), mi.exp(x) + 1, mi.exp(x)), dict(x=T("n", "m"))),
    "a view and more": (lambda x: (mi.transpose(x, (1, 0)), mi.sum(x, axis=1)), dict(x=T("n", "m"))),
    "read again": (lambda x: (mi.exp(x), mi.softmax(mi.exp(x))), dict(x=T("n", "m"))),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_library_versions_write_to_given_results(name: str, dtype: str) -> None:
    fn, types = PROGRAMS[name]
    p = retyped(mi.trace(fn, "f", **types), dtype)
    run = LibraryProgram(to_axes(p))
    sizes = {"n": 5, "m": 7}
    inputs = random_inputs(p, sizes)
    before = [a.copy() for a in inputs]
    own = run(inputs, sizes)
    out = [np.full(a.shape, np.nan, a.dtype) for a in own]
    found = run(inputs, sizes, out)
    assert all(f is o for f, o in zip(found, out, strict=True))
    for a, b in zip(out, own, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(a, b)
