"""Kernels of graph modules: results at all sizes, given memory, errors, text."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.compiler.kernels.fused import fused_kernel
from mirage.compiler.kernels.mugraph import MuGraphKernel, kernel_from_text
from mirage.compiler.kernels.versions import KernelVersion, compile_versions
from mirage.errors import DimError, FormatError, GraphError, InputError, MirageError, ScheduleError, VerificationError
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.ir.types import DTYPES
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.model.cost import CostModel, Machine
from mirage.kernels.cpu.tuning import machine_model
from mirage.search.inputs import random_inputs
from tests import forks
from tests.compiler.groups import GROUPS, group
from tests.modelled import modelled
from tests.mugraph.graphs import flash_decoding
from tests.random_programs import random_program, random_sizes, strided_inputs
from tests.sampled import thinned

MODEL = CostModel(Machine(2, 32 << 10, 1 << 20, 8 << 20))
SIZES = ({"n": 1, "m": 70, "k": 33, "h": 3}, {"n": 37, "m": 5, "k": 200, "h": 1}, {"n": 130, "m": 1, "k": 1, "h": 2})


def _hints(program: Program) -> list[dict[str, int]]:
    return [{s: n if s == "n" else 128 if s != "h" else 4 for s in program.symbols()} for n in (1, 256)]


@cache
def kernel(name: str) -> MuGraphKernel:
    found = fused_kernel(group(name), _hints(group(name)), MODEL, bounds=dict.fromkeys("nmk", 256))
    assert found is not None
    return found


def _empty(program: Program, sizes: Mapping[str, int]) -> list[np.ndarray]:
    return [np.full(t.bind(sizes), np.nan, DTYPES[t.dtype]) for t in program.output_types]


def _check(k: MuGraphKernel, sizes: Mapping[str, int], inputs: Sequence[np.ndarray], tolerance: float = 1e-4) -> None:
    exact = run_reference(k.program, inputs, sizes, "float64")
    for _ in range(2):  # the second call is prepared
        out = _empty(k.program, sizes)
        k(inputs, sizes, out)
        for o, e in zip(out, exact, strict=True):
            np.testing.assert_allclose(
                o.astype(np.float64), e, rtol=0, atol=tolerance * max(np.abs(e).max(initial=0), 1e-30)
            )


@pytest.mark.parametrize("name", thinned(GROUPS))
def test_results_at_all_sizes(name: str) -> None:
    k = kernel(name)
    assert all(v.kind == "mugraph" and v.certificate and v.certificate.equal for v in k.versions)
    for given in SIZES:
        sizes = {s: given[s] for s in k.program.symbols()}
        _check(k, sizes, random_inputs(k.program, sizes, seed=1))


@pytest.mark.parametrize("name", ["softmax", "linear, gelu", "scalar", "argument returned"])
@pytest.mark.parametrize("empty", ["n", "m"])
def test_results_on_nothing(name: str, empty: str) -> None:
    k = kernel(name)
    sizes = {s: 0 if s == empty else 4 for s in k.program.symbols()}
    _check(k, sizes, random_inputs(k.program, sizes, seed=1))


def test_large_logits_do_not_overflow() -> None:
    k = kernel("attention")
    sizes = {"h": 2, "n": 9, "m": 200}
    inputs = [100 * a for a in random_inputs(k.program, sizes, seed=2)]
    _check(k, sizes, inputs, tolerance=1e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_types(dtype: str) -> None:
    types = {s: mi.tensor("n", 64, dtype=dtype) for s in "xr"} | {"w": mi.tensor(64, 64, dtype=dtype)}
    program = mi.trace(lambda x, r, w: mi.rms_norm(x @ w + r), "norm", **types)
    k = fused_kernel(program, [{"n": 16}], MODEL)
    assert k is not None
    tolerance = {"float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-12}[dtype]
    _check(k, {"n": 21}, random_inputs(program, {"n": 21}, seed=3), tolerance)


def test_random_programs_on_arrays_of_any_strides() -> None:
    built = 0
    for seed in range(12):
        rng = Random(seed)
        program = random_program(rng, 4)
        k = fused_kernel(program, [dict.fromkeys(program.symbols(), 32)], MODEL)
        if k is None:
            continue
        built += 1
        sizes = random_sizes(rng, program)
        inputs = strided_inputs(rng, program, sizes)
        with np.errstate(all="ignore"):
            exact = run_reference(program, inputs, sizes, "float64")
        out = _empty(program, sizes)
        k(inputs, sizes, out)
        for o, e in zip(out, exact, strict=True):
            fits = np.abs(e) < 1e30
            np.testing.assert_allclose(o[fits], e[fits], rtol=0, atol=2e-3 * max(np.abs(e[fits]).max(initial=0), 1e-6))
    assert built > 5


def test_results_that_c_code_cannot_write() -> None:
    k = kernel("linear, gelu")
    sizes = {"n": 6, "k": 40, "m": 50}
    inputs = random_inputs(k.program, sizes, seed=4)
    wide = np.zeros((6, 100), np.float32)
    k(inputs, sizes, [wide[:, ::2]])
    np.testing.assert_allclose(wide[:, ::2], run_reference(k.program, inputs, sizes, "float64")[0], atol=1e-4)
    assert not wide[:, 1::2].any()


def test_versions_follow_the_sizes() -> None:
    k = kernel("linear, gelu")
    assert k.version({"n": 1, "k": 128, "m": 128}) is not k.version({"n": 256, "k": 128, "m": 128})
    assert "fused" in str(k) and "n <= " in str(k)
    assert k.launches({"n": 1, "k": 128, "m": 128}) == 1
    with pytest.raises(DimError, match="no size for k"):
        k.version({"n": 1, "m": 2})


def test_two_kernels_run_where_one_would_leave_threads_idle() -> None:
    types = dict(x=mi.tensor("n", 512), w=mi.tensor(512, 512), r=mi.tensor("n", 512))
    program = mi.trace(lambda x, w, r: mi.rms_norm(x @ w + r), "norm", **types)
    k = fused_kernel(program, [{"n": 1}, {"n": 1024}], MODEL)
    assert k is not None
    assert (k.launches({"n": 1}), k.launches({"n": 1024})) == (2, 1)
    (workspace,) = k.workspace_types
    assert workspace.dtype == "float32" and workspace.bind({"n": 10}) >= (5120,)
    for n in (1, 3, 100, 1024):
        inputs, out = random_inputs(program, {"n": n}, seed=9), np.empty((n, 512), np.float32)
        k(inputs, {"n": n}, [out], [np.empty(workspace.bind({"n": n}), np.float32)])
        np.testing.assert_allclose(out, run_reference(program, inputs, {"n": n}, "float64")[0], atol=1e-4)


def test_results_without_a_common_axis_are_no_kernel() -> None:
    apart = mi.trace(lambda x: (mi.sum(x, axis=0), mi.sum(x, axis=1)), "apart", x=mi.tensor("n", 512))
    assert fused_kernel(apart, [{"n": 256}], MODEL) is None


def test_a_hint_gives_every_dim_a_size() -> None:
    with pytest.raises(DimError, match="lack m"):
        fused_kernel(group("softmax"), [{"n": 3}], MODEL)


def test_without_hints_dims_are_as_large_as_they_can_be() -> None:
    k = fused_kernel(group("softmax"), [], MODEL, bounds={"m": 100})
    assert k is not None
    assert {"n": 4096, "m": 100} in [v.sizes for v in k.versions]


def test_a_program_without_dims() -> None:
    program = mi.trace(lambda x: mi.softmax(x), "fixed", x=mi.tensor(4, 33))
    k = fused_kernel(program, [{}], MODEL)
    assert k is not None and len(k.versions) == 1
    _check(k, {}, random_inputs(program, {}, seed=10))
    assert kernel_from_text(k.to_text()).to_text() == k.to_text()


def test_sizes_beyond_the_bounds_are_not_planned_for() -> None:
    k = fused_kernel(group("linear, gelu"), [{"n": 4, "k": 64, "m": 64}], MODEL, bounds={"n": 4, "k": 64, "m": 64})
    assert k is not None
    assert all(n <= {"n": 4}.get(s, 64) for v in k.versions for s, n in v.sizes.items())


def test_an_empty_dim_is_no_typical_size() -> None:
    k = fused_kernel(group("softmax"), [{"n": 0, "m": 0}], MODEL, bounds={"n": 1, "m": 1})
    assert k is not None and [v.sizes for v in k.versions] == [{"n": 1, "m": 1}]


def test_the_model_of_this_machine() -> None:
    assert machine_model().machine.threads >= 1
    assert machine_model() is machine_model()


def test_library_kernel() -> None:
    k = MuGraphKernel.of_library(group("linear, gelu"))
    sizes = {"n": 3, "k": 20, "m": 30}
    _check(k, sizes, random_inputs(k.program, sizes, seed=5))
    assert k.workspace_types == () and k.launches(sizes) > 1
    transposed = np.zeros((30, 3), np.float32)
    inputs = random_inputs(k.program, sizes, seed=5)
    k(inputs, sizes, [transposed.T])
    np.testing.assert_allclose(transposed.T, run_reference(k.program, inputs, sizes, "float64")[0], atol=1e-4)


@cache
def several() -> MuGraphKernel:
    """FlashDecoding: two kernels with tensors between them."""
    case = flash_decoding()
    version = KernelVersion("mugraph", case.graph, case.schedule, case.sizes)
    return MuGraphKernel(case.program, compile_versions(case.program, [version]), 0, "superoptimized")


def _workspace(k: MuGraphKernel, sizes: Mapping[str, int]) -> np.ndarray:
    (t,) = k.workspace_types
    return np.full(t.bind(sizes), np.nan, DTYPES[t.dtype])


def test_given_workspace_holds_what_is_between_kernels() -> None:
    k = several()
    sizes = flash_decoding().sizes
    inputs = random_inputs(k.program, sizes, seed=6)
    exact = run_reference(k.program, inputs, sizes, "float64")[0]
    (executable,) = (v.executable for v in k.versions)
    assert executable is not None
    for _ in range(3):  # general, then prepared calls
        workspace, out = _workspace(k, sizes), _empty(k.program, sizes)
        k(inputs, sizes, out, [workspace])
        np.testing.assert_allclose(out[0], exact, atol=1e-4)
        assert np.isfinite(workspace).any()
    assert not executable._workspaces  # nothing was allocated
    k(inputs, sizes, out)
    np.testing.assert_allclose(out[0], exact, atol=1e-4)
    assert len(executable._workspaces) == 1
    k(inputs, sizes, out, [_workspace(k, sizes)])
    np.testing.assert_allclose(out[0], exact, atol=1e-4)


def test_a_workspace_need_not_start_at_a_cache_line() -> None:
    k = several()
    sizes = flash_decoding().sizes
    inputs = random_inputs(k.program, sizes, seed=6)
    needed = _workspace(k, sizes).size
    whole = np.zeros(needed + 16, np.float32)
    for offset in (1, 5, 15):
        part = whole[offset : offset + needed]
        whole[:offset] = whole[offset + needed :] = 7
        out = _empty(k.program, sizes)
        k(inputs, sizes, out, [part])
        np.testing.assert_allclose(out[0], run_reference(k.program, inputs, sizes, "float64")[0], atol=1e-4)
        assert (whole[:offset] == 7).all() and (whole[offset + needed :] == 7).all()
        assert address(part) % 64


@pytest.mark.parametrize("prepared", [False, True])
def test_a_small_workspace_is_an_error(prepared: bool) -> None:
    k = several()
    sizes = flash_decoding().sizes
    inputs, out = random_inputs(k.program, sizes, seed=6), _empty(k.program, sizes)
    if prepared:
        k(inputs, sizes, out)
    with pytest.raises(InputError, match="the workspace has 16 bytes"):
        k(inputs, sizes, out, [np.zeros(4, np.float32)])


def test_executables_check_their_workspace() -> None:
    (executable,) = (v.executable for v in several().versions)
    assert executable is not None
    sizes = flash_decoding().sizes
    inputs = random_inputs(several().program, sizes, seed=6)
    with pytest.raises(InputError, match="workspace"):
        executable(inputs, sizes, workspace=np.zeros(4, np.float32))


def test_bad_arrays_are_errors() -> None:
    k = kernel("gate")
    sizes = {"n": 3, "m": 5}
    x, out = np.zeros((3, 5), np.float32), np.zeros((3, 5), np.float32)
    with pytest.raises(InputError, match=r"takes 2 inputs, got 1"):
        k([x], sizes, [out])
    with pytest.raises(InputError, match=r"input y is float32\[3, 4\]"):
        k([x, np.zeros((3, 4), np.float32)], sizes, [out])
    with pytest.raises(InputError, match=r"input x is float64"):
        k([x.astype(np.float64), x], sizes, [out])
    with pytest.raises(InputError, match=r"result 0 is float32\[5, 3\]"):
        k([x, x], sizes, [np.zeros((5, 3), np.float32)])
    with pytest.raises(InputError, match="takes 1 results, got 0"):
        k([x, x], sizes, [])
    with pytest.raises(DimError, match="no size for m"):
        k([x, x], {"n": 3}, [out])
    out.flags.writeable = False
    with pytest.raises(InputError, match="cannot be written to"):
        k([x, x], sizes, [out])


def test_several_threads() -> None:
    k = kernel("softmax")
    failed: list[str] = []

    def work(seed: int) -> None:
        sizes = {"n": 3 + seed, "m": 50}
        inputs = random_inputs(k.program, sizes, seed)
        want = run_reference(k.program, inputs, sizes, "float64")[0]
        for _ in range(50):
            out = _empty(k.program, sizes)
            k(inputs, sizes, out)
            if not np.allclose(out[0], want, atol=1e-5):
                failed.append(str(seed))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


def test_superoptimized_programs_are_kernels() -> None:
    result = modelled(group("linear, gelu"), {"n": 2, "k": 64, "m": 64})
    k = MuGraphKernel.of_result(result)
    sizes = {"n": 5, "k": 40, "m": 30}
    inputs = random_inputs(k.program, sizes, seed=7)
    out = _empty(k.program, sizes)
    k(inputs, sizes, out)
    np.testing.assert_array_equal(out[0], result(*inputs))
    assert k.origin == "superoptimized" and len(k.versions) == len(result.versions)
    again = kernel_from_text(k.to_text())
    again(inputs, sizes, out)
    np.testing.assert_array_equal(out[0], result(*inputs))


_OTHER = """
import sys
import numpy as np
from mirage.compiler.kernels.mugraph import kernel_from_text
from mirage.search.inputs import random_inputs
kernel = kernel_from_text(sys.stdin.read())
sizes = {"n": 5, "k": 40, "m": 30}
out = [np.empty(t.bind(sizes), np.float32) for t in kernel.program.output_types]
kernel(random_inputs(kernel.program, sizes, seed=8), sizes, out)
sys.stdout.write(out[0].tobytes().hex())
"""


def test_text_runs_in_another_process() -> None:
    k = kernel("linear, gelu")
    sizes = {"n": 5, "k": 40, "m": 30}
    out = _empty(k.program, sizes)
    k(random_inputs(k.program, sizes, seed=8), sizes, out)
    with forks.start(_OTHER) as other:
        other.stdin.write(k.to_text())
        told, errors = other.communicate()
    assert other.returncode == 0, errors
    assert bytes.fromhex(told) == out[0].tobytes()


@pytest.mark.parametrize("name", ["linear, gelu", "attention", "several", "library"])
def test_text_reads_back(name: str) -> None:
    k = (
        several()
        if name == "several"
        else MuGraphKernel.of_library(group("gate"))
        if name == "library"
        else kernel(name)
    )
    again = kernel_from_text(k.to_text())
    assert again.to_text() == k.to_text()
    assert str(again) == str(k)
    assert again.versions == k.versions


def _altered(change: str) -> str:
    obj: dict[str, Any] = json.loads(kernel("linear, gelu").to_text())
    match change:
        case "not JSON":
            return "{"
        case "not an object":
            return "[]"
        case "schema":
            obj["schema"] = 99
        case "a field less":
            del obj["decision"]["tree"]
        case "origin":
            obj["origin"] = "elsewhere"
        case "constants":
            obj["constants"] = ["nobody"]
        case "no versions":
            obj["decision"]["versions"] = []
        case "versions":
            obj["decision"]["versions"][0]["graph"] = 7
        case "kind":
            obj["decision"]["versions"][0]["kind"] = "code"
        case "sizes":
            obj["decision"]["versions"][0]["sizes"] = {"n": 1}
        case "tree":
            obj["decision"]["tree"] = 12
        case "graphs":
            obj["graphs"] = {}
        case "a graph less":
            obj["graphs"][0] = {}
        case "tiles":
            obj["decision"]["versions"][0]["schedule"]["kernels"][0]["tiles"] = []
        case "program":
            obj["program"] = obj["program"].replace("float32[n, k]", "float32[k]")
        case "another operator":
            text = json.dumps(obj["graphs"])
            obj["graphs"] = json.loads(text.replace('"gelu"', '"relu"'))
    return json.dumps(obj)


@pytest.mark.parametrize(
    "change, error",
    [
        *((c, FormatError) for c in ("not JSON", "not an object", "schema", "a field less", "origin", "constants")),
        *((c, FormatError) for c in ("no versions", "versions", "kind", "sizes", "tree", "graphs", "a graph less")),
        ("tiles", ScheduleError),
        ("program", MirageError),
        ("another operator", VerificationError),
    ],
)
def test_altered_text_is_an_error(change: str, error: type[MirageError]) -> None:
    with pytest.raises(error):
        kernel_from_text(_altered(change))


def test_a_graph_of_another_program_is_an_error() -> None:
    version = kernel("softmax").versions[0]
    with pytest.raises(GraphError):
        compile_versions(group("gate"), [version])
