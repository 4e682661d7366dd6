"""The benchmark of whole programs: what it counts of calls and of memory is what happens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage as mi
from benchmarks.compiler import dispatch, memory
from benchmarks.compiler import race as compiler
from benchmarks.compiler.calls import allocations, array_bytes, calls_of, inside
from benchmarks.compiler.pools import SizeClassPool, reserved_after
from benchmarks.fairness import aligned
from benchmarks.graphs.programs import MEASURED, SMALL, GraphProgram
from mirage.cache import ResultStore
from mirage.compiler.kernels.mugraph import MuGraphKernel
from mirage.compiler.memory.buffers import Buffer
from mirage.errors import InputError, VerificationError
from mirage.ir.dims import evaluate
from mirage.runtime import program as vm
from mirage.runtime.executable import Executable

ROW = mi.tensor("n", 8)


def fused(fn: Any, specs: Mapping[str, Any], *without: str, bounds: Mapping[str, int] | None = None) -> Executable:
    return mi.compile(fn, specs, bounds=bounds, without=("superoptimize", *without), cache=False)


def chain(x: Any, w: Any) -> Any:
    for _ in range(3):
        x = mi.tanh(x @ w)
    return x


CHAIN = {"x": ROW, "w": mi.tensor(8, 8)}


def chain_arguments(n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape, np.float32) for shape in ((n, 8), (8, 8))]


def test_calls_and_their_bytes() -> None:
    run = fused(chain, CHAIN)
    calls = calls_of(run, chain_arguments(5))
    assert [c.kind for c in calls] == ["library", "kernel"] * 3
    rows, weight = 5 * 8 * 4, 8 * 8 * 4
    assert [c.bytes for c in calls] == [2 * rows + weight, 2 * rows] * 3
    assert [c.flops for c in calls] == [2 * 5 * 8 * 8, 0] * 3
    assert all(c.launches == 1 for c in calls)


def test_every_operator_is_a_call_where_nothing_is_fused() -> None:
    calls = calls_of(fused(chain, CHAIN, "fuse", "libraries"), chain_arguments(2))
    assert [(c.kind, c.name) for c in calls] == [("operator", "matmul"), ("operator", "tanh")] * 3


def test_rounds_of_loops_and_taken_branches_are_counted() -> None:
    def f(x: Any, w: Any, steps: Any) -> Any:
        return mi.loop(steps, lambda i, y, w: mi.tanh(y @ w), x, invariant=(w,), bound=9)

    run = fused(f, {**CHAIN, "steps": mi.tensor(dtype="int64")})
    for n in (0, 2, 7):
        assert len(calls_of(run, [*chain_arguments(3), np.array(n)])) == 2 * n


def test_constants_are_prepared_once_and_not_counted() -> None:
    def f(x: Any, w: Any) -> Any:
        return x @ mi.exp(w)

    run = mi.compile(f, CHAIN, constants=("w",), without=("superoptimize",), cache=False)
    assert [c.kind for c in calls_of(run, chain_arguments(3))] == ["library"]


def test_launches_within_a_kernel() -> None:
    function = mi.program(x=CHAIN["x"], w=CHAIN["w"])(lambda x, w: mi.relu(x @ w) @ w)
    launches, between = inside(MuGraphKernel.of_library(function.trace()), {"n": 4})
    assert launches == 3
    # the first product is written, read and written by relu, and read again
    assert between == 4 * (4 * 8 * 4)


def test_the_trace_is_that_of_code_without_a_plan() -> None:
    for bounds in (None, {"n": 64}):
        (single,), (planned,) = fused(chain, CHAIN, "plan").program, fused(chain, CHAIN, bounds=bounds).program
        buffers = allocations(single)
        # products and results of tanh, but for the last, which the caller gets
        assert [evaluate(b.bytes, {"n": 5}) for b in buffers] == [5 * 8 * 4] * 5
        for b in buffers:
            assert isinstance(single.code[b.first], vm.MakeTensor)
            dropped = single.code[b.last + 1]
            assert isinstance(dropped, vm.Free) and b.id in [f"r{r}" for r in dropped.registers]
        # the same tensors, taken and freed in the same order, wherever a plan puts them
        assert events(allocations(planned)) == events(buffers)
        assert allocations(planned, left_out=True) == []
        assert allocations(single, left_out=True) == buffers
        # two tensors are alive at a time
        pool = SizeClassPool(page=32)
        assert reserved_after(pool, [{b.id: 160 for b in buffers}] * 3, buffers) == 2 * 160


def events(buffers: list[Buffer]) -> list[str]:
    """What is taken and freed, in order."""
    taken = [(b.first, 0, f"+{b.id} {b.bytes}") for b in buffers]
    return [what for _, _, what in sorted([*taken, *((b.last, 1, f"-{b.id}") for b in buffers)])]


def test_tensors_in_a_tuple_are_in_use_and_results_are_not_counted() -> None:
    def f(x: Any, w: Any) -> Any:
        kept = mi.cos(x)
        return kept, mi.repeat(kept, 3, axis=0) @ w

    for without, bounds in ((("plan",), None), ((), {"n": 4})):
        (main,) = fused(f, CHAIN, *without, bounds=bounds).program
        (repeated,) = allocations(main)
        assert str(repeated.bytes) == "96*n"
        calls = [k for k, i in enumerate(main.code) if isinstance(i, vm.CallKernel | vm.CallLibrary)]
        assert repeated.first < calls[0] < calls[1] == repeated.last


def test_memory_that_is_not_in_the_code_is_refused() -> None:
    run = fused(chain, CHAIN, "fuse", "libraries", "plan")
    with pytest.raises(InputError, match=r"chain: the memory of .*matmul"):
        allocations(run.program.functions["chain"])


def test_memory_of_successive_calls(tmp_path: Path) -> None:
    calls = [{"b": 1, "s": s} for s in (2, 4, 8, 12)]
    store = ResultStore(f"sqlite:///{tmp_path}/results.sqlite")
    row = memory.row(SMALL["bert_encoder"], "fused only", ("superoptimize",), calls, 1.0, store)
    assert row.sizes == ("s=2", "s=4", "s=8", "s=12")
    assert row.unplanned == 0 and row.library_calls == 0
    # nothing holds less than what is in use at once
    assert row.live <= row.static < min(row.size_class, row.caching, row.exact, row.symbolic)
    assert row.saved == 1 - row.static / row.caching
    # the figures of the plans are what the machine holds
    bert = SMALL["bert_encoder"]
    for bounds, held in (({"b": 1, "s": 12}, row.static), (None, row.symbolic)):
        run = mi.compile(bert.trace(), bounds=bounds, constants=bert.constants, without=("superoptimize",), cache=False)
        for sizes in calls:
            run(*bert.arguments(sizes, np.random.default_rng(0)))
        assert run.idle_bytes == pytest.approx(held, rel=0.3 if bounds is None else 0.0)
    (cells,) = memory.memory_table([row]).rows
    assert cells[:3] == ["bert_encoder", "fused only", "s=2; s=4; s=8; s=12"]


def test_repeated_instructions_compute_the_same() -> None:
    run = fused(lambda x: mi.softmax(x), {"x": ROW})
    more = dispatch.repeated(run.program, 4)
    again = Executable(more, run.kernels, (), run.facts)
    x = chain_arguments(3)[0]
    np.testing.assert_array_equal(run(x), again(x))
    assert len(calls_of(again, [x])) == 5
    with pytest.raises(VerificationError, match="makes 6 calls"):
        dispatch.repeated(fused(chain, CHAIN).program, 1)


def test_dispatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_ROUNDS", 3)
    rows = list(dispatch.measure())
    assert [r.instruction for r in rows][:3] == ["no instruction", "fused muGraph", "fused loops"]
    assert all(r.call_us > 0 for r in rows)
    assert dispatch.dispatch_table(rows).rows[0][3:] == ["", ""]


def test_errors_are_relative_to_the_largest_element() -> None:
    wanted = [np.array([4.0, 0.0]), np.array(1e-9)]
    assert compiler.error([np.array([4.0, 0.4]), np.array(0.0)], wanted) == pytest.approx(0.1)
    assert compiler.error([np.array([4.0])], wanted[:1]) == float("inf")
    assert compiler.error([], wanted) == float("inf")
    assert compiler.error([np.zeros(0)], [np.zeros(0)]) == 0.0
    assert not compiler.error([np.array([np.nan, 0.0])], wanted[:1]) < 1.0


def test_arrays_that_share_memory_count_once() -> None:
    x = np.zeros(8, np.float32)
    assert array_bytes([x, (x[:2], np.zeros(2, np.float32)), (3, 4)]) == 40


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> GraphProgram:
    """One small program instead of the measured ones, and versions that need no search."""
    program = replace(SMALL["cache_update"], measured={"large": {"b": 1, "h": 2, "s": 1, "t": 3, "rest": 2}})
    monkeypatch.setattr(compiler, "MEASURED", {"cache_update": program})
    without = {n: w if "superoptimize" in w else ("superoptimize", *w) for n, w in compiler.VERSIONS.items()}
    monkeypatch.setattr(compiler, "VERSIONS", without)
    monkeypatch.setattr(compiler, "measure_dispatch", lambda say: iter(()))
    return program


def test_rows_of_a_program(small: GraphProgram, capsys: pytest.CaptureFixture[str]) -> None:
    compiler.main(["cache_update"], as_json=True, budget=1.0, cut=0.05)
    rows = json.loads(capsys.readouterr().out)["compiler"]
    assert [r["version"] for r in rows] == list(compiler.VERSIONS)
    assert all(r["error"] < 1e-5 and 0 < r["min_us"] <= r["median_us"] and not r["peer"] for r in rows)
    assert rows[0]["speedup"] == 1 and rows[0]["kernels"] == 0
    # attention reads the keys that were written, where they are
    assert rows[1]["libraries"] == 1 and rows[1]["operators"] == 2
    # two effects, however the rest is fused
    assert all(r["operators"] >= 2 and r["megabytes"] > 0 for r in rows)
    assert {r["program"] for r in rows} == {"cache_update"}


def test_a_peer_that_is_wrong_is_left_out(small: GraphProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(compiler, "_peers", lambda *_: {"PyTorch": lambda: np.zeros(3, np.float32)})
    found = compiler.measure(["cache_update"], 1.0, 0.05, said.append)
    assert not any(r.peer for r in found.programs)
    assert any(line.startswith("cache_update, large: PyTorch differs from float64 by") for line in said)


def test_rows_of_other_programs_stay() -> None:
    def row(program: str, us: float) -> compiler.CompilerRow:
        return compiler.CompilerRow(program, "batch1", "full", False, 1, 0, 0, 1.0, us, us, 1.0, 0.0, 1.0, 0.0)

    earlier = [row("mixtral_moe", 1.0), row("gpt2_decode", 2.0)]
    found = compiler.Results([row("gpt2_decode", 3.0)], [], []).beside(earlier, [])
    assert [(r.program, r.min_us) for r in found.programs] == [("mixtral_moe", 1.0), ("gpt2_decode", 3.0)]


def test_a_wrong_program_is_found(small: GraphProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(small, yardstick=lambda *a: tuple(r + 1 for r in small.yardstick(*a)))
    monkeypatch.setattr(compiler, "MEASURED", {"cache_update": wrong})
    with pytest.raises(VerificationError, match="cache_update, large: library only differs from float64 by"):
        compiler.measure([], 1.0, 0.05, lambda _: None)


def test_unknown_programs_are_refused() -> None:
    with pytest.raises(InputError, match="no measured program is named llama; choose from llama_prefill"):
        compiler.measure(["llama"])


@pytest.mark.slow
@pytest.mark.parametrize("name", compiler.MODELS)
def test_peers_compute_the_same(name: str) -> None:
    for package in ("torch", "jax", "openvino"):
        pytest.importorskip(package)
    program = MEASURED[name]
    sizes = next(iter(program.measured.values()))
    arguments = [aligned(a) for a in program.arguments(sizes, np.random.default_rng(0))]
    expected = program.expected(arguments)
    from benchmarks.peers.layers_in_jax import jax_layers
    from benchmarks.peers.layers_in_onnx import onnx_layers
    from benchmarks.peers.layers_in_openvino import openvino_layers
    from benchmarks.peers.layers_in_torch import torch_layers
    from benchmarks.peers.peers import inference

    with inference():
        forms = torch_layers(program, arguments, 2)
        assert len(forms) == (3 if name.startswith(("llama", "gemma")) else 2)
        left_out: list[str] = []
        of = (
            forms, onnx_layers(program, arguments, [e.shape for e in expected], 2), jax_layers(program, arguments, 2),
            openvino_layers(program, forms, 2, left_out.append),
        )  # fmt: skip
        # where tokens go is known when a program runs, and FlexAttention is no operator of ONNX
        assert len(left_out) <= name.startswith(("mixtral", "gemma"))
        for run in (run for runs in of for run in runs.values()):
            found = run()
            found = found if isinstance(found, tuple | list) else (found,)
            assert compiler.error([np.asarray(f) for f in found], expected) < 1e-5
