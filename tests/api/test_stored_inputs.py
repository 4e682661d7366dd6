"""Programs of float32 that read inputs of 8 and 16 bits: weights with their scales, caches, products of bytes."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.api import verify
from mirage.cache import ResultStore
from mirage.errors import DTypeError, GraphError, InputError, VerificationError
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.results.cpu.result import Superoptimized
from tests.api.small import BUDGET, loaded
from tests.kernels.kernels import bound, error, random_inputs
from tests.modelled import modelled
from tests.programs import widened
from tests.sampled import thinned


def gated(x: Any, w: Any, s: Any, v: Any, t: Any) -> Any:
    return mi.silu(x @ (mi.cast(w, "float32") * s)) * (x @ (mi.cast(v, "float32") * t))


def attend(q: Any, k: Any, ks: Any, v: Any, vs: Any) -> Any:
    return mi.softmax(q @ (mi.cast(k, "float32") * ks).mT / 64) @ (mi.cast(v, "float32") * mi.cast(vs, "float32"))


def dynamic(x: Any, w: Any, s: Any, t: Any) -> Any:
    return mi.cast(x, "float32") @ mi.cast(w, "float32").mT * s * t


def shifted(x: Any, w: Any, s: Any, t: Any) -> Any:
    """As layers are quantized: rows have a zero point, weights a scale for each column."""
    return mi.relu((mi.cast(x, "float32") - 128) @ mi.cast(w, "float32").mT * s + t)


T = mi.tensor
BYTES: dict[str, Any] = dict(dtype="int8")
WEIGHT: dict[str, Any] = dict(w=T(64, "n", **BYTES), s=T("n"), v=T(64, "n", **BYTES), t=T("n"))
CACHE: dict[str, Any] = dict(
    k=T("b", "t", 16, **BYTES), ks=T("b", "t", 1), v=T("b", "t", 16, **BYTES), vs=T("b", "t", 1)
)
PROGRAMS: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, int]]] = {
    "gated": (gated, dict(x=T("m", 64)) | WEIGHT, {"m": 3, "n": 40}),
    "attend": (attend, dict(q=T("b", 1, 16)) | CACHE, {"b": 2, "t": 70}),
    "dynamic": (dynamic, dict(x=T("m", 32, **BYTES), w=T("n", 32, **BYTES), s=T("n"), t=T("m", 1)), {"m": 5, "n": 19}),
    "unsigned": (dynamic, dict(x=T("m", 32, dtype="uint8"), w=T("n", 32, **BYTES), s=T("n"), t=T("m", 1)), {"m": 6, "n": 21}),
    "shifted": (shifted, dict(x=T("m", 40, dtype="uint8"), w=T("n", 40, **BYTES), s=T("n"), t=T("n")), {"m": 7, "n": 18}),
    "three types": (
        attend,
        dict(q=T("b", 1, 16)) | CACHE | dict(v=T("b", "t", 16, dtype="bfloat16"), vs=T("b", "t", 1, dtype="float16")),
        {"b": 3, "t": 40},
    ),
}


@functools.cache
def program(name: str) -> Program:
    fn, specs, _ = PROGRAMS[name]
    return mi.trace(fn, **specs)


@functools.cache
def result(name: str) -> Superoptimized:
    return modelled(program(name), PROGRAMS[name][2], kernels=4)


def arrays(p: Program, sizes: dict[str, int], seed: int = 0) -> list[np.ndarray]:
    """Scales are about 1 / 100, so that no result is that of one term."""
    drawn = random_inputs(p, sizes, seed)
    scales = [t.rank == 1 or t.shape[-1] == 1 for t in p.input_types]
    return [(a / 100).astype(a.dtype) if scale else a for a, scale in zip(drawn, scales, strict=True)]


def right(p: Program, found: Any, given: list[np.ndarray], sizes: dict[str, int]) -> None:
    assert error([np.asarray(found)], run_reference(p, given, sizes, "float64")) < 4 * bound("float32")


@pytest.mark.parametrize("name", thinned(PROGRAMS))
def test_every_kernel_is_right_at_other_sizes(name: str) -> None:
    r, (_, _, sizes) = result(name), PROGRAMS[name]
    kernels = [c.executable for c in r.graphs if c.executable is not None]
    assert kernels and all("#define MI_NARROW int8" in k.source for k in kernels)
    assert all(c.certificate.equal for c in r.graphs)
    for table in (sizes, dict.fromkeys(sizes, 1), {s: n + 33 for s, n in sizes.items()}):
        given = arrays(r.program, table, 1)
        for kernel in kernels:
            right(r.program, kernel(given, table)[0], given, table)
        right(r.program, r(*given), given, table)
    empty = arrays(r.program, dict.fromkeys(sizes, 0))
    assert r(*empty).size == 0


@pytest.mark.parametrize(("name", "product"), [("dynamic", "int8_int8"), ("unsigned", "(uint8_int8|int8_uint8)")])
def test_bytes_are_multiplied_as_such(name: str, product: str) -> None:
    r = result(name)
    sources = [c.executable.source for c in r.graphs if c.executable is not None]
    assert any(re.search(f"mi_gemm_dot_bytes_{product}\\(", source) for source in sources)
    x, w, s, t = arrays(r.program, {"m": 9, "n": 21})
    exact = (x.astype(np.int64) @ w.astype(np.int64).T).astype(np.float64)
    np.testing.assert_allclose(r(x, w, s, t), exact * s * t, rtol=1e-6)


def test_arrays_of_numpy_and_torch_again_and_again() -> None:
    torch = pytest.importorskip("torch")
    r, sizes = result("gated"), {"m": 4, "n": 50}
    given = arrays(r.program, sizes)
    found = r(*given)
    tensors = [torch.from_numpy(a) for a in given]
    out = np.empty_like(found)
    for _ in range(3):
        np.testing.assert_array_equal(r(*given), found)
        np.testing.assert_array_equal(r(*tensors).numpy(), found)
        assert r(*given, out=out) is out
        np.testing.assert_array_equal(out, found)
    # at odd addresses, with gaps, turned
    odd = np.zeros(given[1].size + 1, np.int8)[1:].reshape(given[1].shape)
    odd[...] = given[1]
    for w in (odd, np.repeat(given[1], 2, axis=1)[:, ::2], np.asfortranarray(given[1])):
        np.testing.assert_allclose(r(given[0], w, *given[2:]), found, rtol=1e-5, atol=1e-6)


def test_other_types_are_refused() -> None:
    r = result("gated")
    x, w, *rest = arrays(r.program, {"m": 4, "n": 50})
    for wrong in (w.astype(np.float32), w.view(np.uint8)):
        with pytest.raises(InputError, match=f"input 'w' has dtype {wrong.dtype}, the program wants int8"):
            r(x, wrong, *rest)
    with pytest.raises(InputError, match="input 'x' has dtype int8, the program wants float32"):
        r(x.astype(np.int8), w, *rest)


def test_saved_and_loaded(tmp_path: Path) -> None:
    r = result("attend")
    r.save(tmp_path / "r.json")
    again = loaded(tmp_path / "r.json")
    assert again.program == r.program and [t.dtype for t in again.program.input_types].count("int8") == 2
    given = arrays(r.program, {"b": 3, "t": 21})
    np.testing.assert_array_equal(again(*given), r(*given))
    # a graph that reads what the program does not store would read other memory
    text = (tmp_path / "r.json").read_text().replace('"dtype": "int8"', '"dtype": "uint8"').replace('"int8"', '"uint8"')
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(VerificationError, match="does not compute attend; the file was altered"):
        loaded(tmp_path / "r.json")


def test_the_store_keeps_what_is_stored_apart(tmp_path: Path) -> None:
    store = ResultStore(f"sqlite:///{tmp_path}/r.sqlite")
    base = mi.trace(lambda x, w: mi.relu(x @ w), "product", x=T("m", 16), w=T(16, "n"))
    forms = [base, *(widened(base, dtype, [1]) for dtype in ("int8", "uint8", "float16", "bfloat16"))]
    for p in forms:
        given = arrays(p, {"m": 3, "n": 8})
        for hit in (False, True):
            found = mi.superoptimize(p, sizes={"m": 3, "n": 8}, budget=BUDGET, cache=store)
            assert found.cache_hit is hit
            right(p, found(*given), given, {"m": 3, "n": 8})


def test_graphs_as_text_and_verified() -> None:
    graph = result("gated").best.graph or result("gated").graphs[0].graph
    assert graph is not None and "w: int8.cast(dtype='float32')[" in str(graph)
    assert verify(program("gated"), graph).equal
    with pytest.raises(GraphError, match="has other inputs"):
        verify(program("gated"), replace(graph, inputs=tuple(replace(x, dtype="") for x in graph.inputs)))


WRONG = [
    (lambda x, y: x @ y, dict(x=T("m", 8), y=T(8, "n", **BYTES)), "int8"),
    (lambda x: x.mT, dict(x=T("m", 8, **BYTES)), "a result is int8; only float32"),
    (lambda x: mi.cast(x, "float64") + 1, dict(x=T(4, **BYTES)), "input 'x' is int8, and the program computes float64"),
    (lambda x: mi.cast(x * 2, "float32"), dict(x=T(4, dtype="float16")), "mul is float16, and the program computes float32"),
    (lambda x: mi.cast(x, "int8"), dict(x=T(4)), "a result is int8; only float32"),
    (lambda x: mi.cast(x, "float32") + 1, dict(x=T(4, dtype="int32")), "input 'x' is int32; only float32"),
]


@pytest.mark.parametrize(("fn", "specs", "message"), WRONG, ids=[m for *_, m in WRONG])
def test_what_is_not_widened_is_refused(fn: Any, specs: dict[str, Any], message: str) -> None:
    with pytest.raises(DTypeError, match=message):
        mi.trace(fn, "wrong", **specs)


@pytest.mark.parametrize("name", thinned(["gated", "attend", "shifted", "three types"], 4))
def test_compiled_functions_search_what_reads_bytes(name: str) -> None:
    """The casts and scales are part of a subprogram, and no tensor of float32 is made of what is stored."""
    fn, specs, sizes = PROGRAMS[name]
    run = mi.compile(fn, specs, sizes=sizes, without=("superoptimize",))
    searched = mi.compile(fn, specs, sizes=sizes, budget=BUDGET)
    assert "fallbacks" not in searched.explain() or "is not searched" not in searched.explain()
    for table in (sizes, dict.fromkeys(sizes, 1), {s: n + 5 for s, n in sizes.items()}):
        given = arrays(program(name), table, 2)
        right(program(name), run(*given), given, table)
        right(program(name), searched(*given), given, table)
