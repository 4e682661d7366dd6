"""Loop programs through compilation and launching on a fake device, whose kernels Triton's interpreter runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu.interpret.interpreter import Interpreter
from mirage.errors import DeviceError, InputError
from mirage.ir.loops.interpret import run_loops
from mirage.ir.loops.lower import lower_operator
from mirage.ir.operator import get_operator
from mirage.ir.types import DTYPES, ELEMENTS, tensor
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.launch import loaded
from mirage.kernels.cuda.launch.arrays import DeviceArray
from mirage.kernels.cuda.loops.kernel import CudaLoopKernel
from tests.ir.loops.programs import inputs, programs
from tests.kernels.cuda.interpreted import Interpreted
from tests.kernels.cuda.lab import Lab

SIZES = {"b": 2, "n": 5, "m": 21, "k": 3}


def call(lab: Lab, kernel: CudaLoopKernel, arrays: list[np.ndarray], sizes: Mapping[str, int]) -> list[Any]:
    """The results on the fake device; raises what it reports."""
    out = [lab.cupy.empty(t.bind(sizes), ELEMENTS[t.dtype]) for t in kernel.output_types]
    given = [a if isinstance(a, lab.cupy.ndarray) else lab.cupy.asarray(a) for a in arrays]
    failures = kernel(given, sizes, out)
    assert (failures is not None) == kernel.checked
    if failures is not None:
        kernel.raise_failures(failures)
    return out


@pytest.mark.parametrize("name", ["masked_softmax", "embedding", "merged_heads", "counts", "halves", "conversions"])
def test_programs_run_on_a_device(lab: Lab, interpreter: Interpreter, name: str) -> None:
    lab.cupy.runner = Interpreted(lab.cupy, interpreter)
    program = programs()[name]
    own = {s: SIZES[s] for s in program.symbols}
    kernel = CudaLoopKernel(program, DEVICES["sm_90"], own)
    arrays = inputs(program, own)
    for found, wanted in zip(call(lab, kernel, arrays, own), run_loops(program, arrays, own, "float64"), strict=True):
        tolerance = 1e-2 if found.dtype.itemsize == 2 else 2e-6 if found.dtype.name in DTYPES else 0
        np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), tolerance, tolerance)


def test_an_index_that_is_out_of_range_is_reported(lab: Lab, interpreter: Interpreter) -> None:
    lab.cupy.runner = Interpreted(lab.cupy, interpreter)
    program = programs()["embedding"]
    own = {s: SIZES[s] for s in program.symbols}
    kernel = CudaLoopKernel(program, DEVICES["sm_90"], own)
    table, ids = inputs(program, own)
    for wrong in (3, -4):
        ids[1, 2] = wrong
        message = f"embedding: gather, axis 0: index {wrong} is out of range for a dim of 3 elements; use -3 to 2"
        with pytest.raises(InputError, match=message):
            call(lab, kernel, [table, ids], own)


def test_failures_stay_in_the_words_that_are_given(lab: Lab, interpreter: Interpreter) -> None:
    lab.cupy.runner = Interpreted(lab.cupy, interpreter)
    program = programs()["embedding"]
    own = {s: SIZES[s] for s in program.symbols}
    kernel = CudaLoopKernel(program, DEVICES["sm_90"], own)
    table, ids = inputs(program, own)
    words = lab.cupy.zeros((kernel.failure_words,), np.int64)
    for wrong in (7, 1):
        ids[0, 0] = wrong
        out = [lab.cupy.empty((2, 5, 21), np.float32)]
        given = [lab.cupy.asarray(table), lab.cupy.asarray(ids)]
        assert kernel(given, own, out, failures=words) is words
    with pytest.raises(InputError, match="index 7 is out of range"):
        kernel.raise_failures(words)


def test_scattered_and_unaligned_arrays(lab: Lab, interpreter: Interpreter) -> None:
    lab.cupy.runner = Interpreted(lab.cupy, interpreter)
    program = programs()["masked_softmax"]
    own = {"n": 5, "m": 16}
    kernel = CudaLoopKernel(program, DEVICES["sm_90"], own)
    x, mask = inputs(program, own)
    (wanted,) = run_loops(program, [x, mask], own, "float64")
    wide, lines = lab.cupy.empty((5, 33), np.float32), lab.cupy.empty((16, 5), np.float32)
    flat = lab.cupy.empty((96,), np.float32)
    start = next(k for k in range(4) if flat[k:].ctypes.data % 16 == 4)
    for given in (wide[:, 1:33:2], lines.T, flat[start : start + 80].reshape(5, 16)):
        given[...] = x
        (found,) = call(lab, kernel, [given, mask], own)
        np.testing.assert_allclose(found, wanted, 2e-6)
    # other code for an address that is no multiple of 16
    assert any("t_x" not in r.divisible for r in lab.requests)
    assert "t_x" in lab.requests[0].divisible


def test_workspace_is_given_or_allocated(lab: Lab, interpreter: Interpreter) -> None:
    lab.cupy.runner = Interpreted(lab.cupy, interpreter)
    program = programs()["merged_heads"]
    own = {s: SIZES[s] for s in program.symbols}
    kernel = CudaLoopKernel(program, DEVICES["sm_90"], own)
    assert [str(t) for t in kernel.workspace_types] == ["float32[b, n]"]
    assert kernel.workspace(own) == [((2, 5), np.dtype(np.float32))]
    (x,) = inputs(program, own)
    (wanted,) = run_loops(program, [x], own, "float64")
    given = lab.cupy.asarray(x)
    for workspace in (None, [lab.cupy.empty((2, 5), np.float32)]):
        out = lab.cupy.empty((10, 21), np.float32)
        assert kernel([given], own, [out], workspace, stream=7) is None
        np.testing.assert_allclose(out, wanted, 2e-6)
    assert {launched.stream for launched in lab.cupy.launches} == {7}
    if workspace is not None:
        assert np.isfinite(np.asarray(workspace[0])).all()


def test_device_arrays_are_taken_as_they_are(lab: Lab, interpreter: Interpreter) -> None:
    lab.cupy.runner = Interpreted(lab.cupy, interpreter)
    program = programs()["doubled"]
    kernel = CudaLoopKernel(program, DEVICES["sm_90"], {"n": 3, "m": 4})
    x, out = lab.random(3, 4), lab.cupy.empty((3, 4), np.float32)
    together = [DeviceArray(a.data.ptr, (3, 4), (4, 1), "float32", 0, a) for a in (x, out)]
    kernel(together[:1], {"n": 3, "m": 4}, together[1:])
    np.testing.assert_array_equal(out, 2 * np.asarray(x))


def test_nothing_runs_for_no_elements(lab: Lab) -> None:
    kernel = CudaLoopKernel(programs()["doubled"], DEVICES["sm_90"], {})
    kernel([lab.cupy.empty((0, 4), np.float32)], {"n": 0, "m": 4}, [lab.cupy.empty((0, 4), np.float32)])
    assert not lab.cupy.launches


def test_sizes_alike_run_the_same_code(lab: Lab, interpreter: Interpreter) -> None:
    lab.cupy.runner = Interpreted(lab.cupy, interpreter)
    program = programs()["masked_softmax"]
    kernel = CudaLoopKernel(program, DEVICES["sm_90"], {"n": 4, "m": 48})
    assert len(kernel.kernels) == 1
    compiled = len(lab.requests)
    # one kernel relies on rows of a multiple of 16 elements, one does not
    assert [sorted(r.divisible) for r in lab.requests] == [
        ["n_m", "t_mask", "t_out", "t_x"],
        ["t_mask", "t_out", "t_x"],
    ]
    for n, m in ((4, 48), (4, 64), (9, 33), (1, 47)):
        own = {"n": n, "m": m}
        call(lab, kernel, inputs(program, own), own)
    assert len(lab.requests) == compiled
    assert ["n_m" in lab.cupy.compiled[launched.kernel.folder][1].divisible for launched in lab.cupy.launches] == [
        True,
        True,
        False,
        False,
    ]
    call(lab, kernel, inputs(program, {"n": 2, "m": 65}), {"n": 2, "m": 65})
    # wider blocks
    assert len(lab.requests) > compiled


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.update(inputs=[]), "got 0 arrays as input; it takes 1"),
        (lambda a: a.update(out=a["out"] * 2), "got 2 arrays as out; it takes 1"),
        (lambda a: a.update(sizes={"n": 3}), "no size for m"),
        (lambda a: a.update(sizes={"n": 3, "m": 5}), r"input x is float32\[3, 4\], not float32\[3, 5\]"),
        (lambda a: a.update(out=[a["out"][0].astype(np.float64)]), r"out\[0\] is float64\[3, 4\], not float32"),
        (lambda a: a.update(out=[a["out"][0].T.copy().T]), r"out\[0\] is not contiguous"),
        (lambda a: a.update(workspace=a["out"]), "got 1 arrays as workspace; it takes 0"),
        (lambda a: a.update(inputs=[np.zeros((3, 4), np.float32)]), "is no array on a CUDA device"),
        (
            lambda a: a.update(inputs=[DeviceArray(16, (3, 4), (4, 1), "float32", 1, None)]),
            r"out\[0\] is on CUDA device 0",
        ),
    ],
)
def test_other_arrays_are_refused(lab: Lab, change: Callable[[dict[str, Any]], None], message: str) -> None:
    kernel = CudaLoopKernel(programs()["doubled"], DEVICES["sm_90"], {})
    arguments: dict[str, Any] = {
        "inputs": [lab.cupy.empty((3, 4), np.float32)],
        "sizes": {"n": 3, "m": 4},
        "out": [lab.cupy.empty((3, 4), np.float32)],
        "workspace": None,
    }
    change(arguments)
    with pytest.raises(InputError, match=message):
        kernel(**arguments)


def test_sizes_that_the_program_cannot_have(lab: Lab) -> None:
    op = get_operator("update_slice")
    program = lower_operator(
        "update_slice", [tensor("n"), tensor("m")], op.check_attrs({"starts": ("k",)}), tensor("n")
    )
    assert program is not None
    kernel = CudaLoopKernel(program, DEVICES["sm_90"], {"n": 4, "m": 2, "k": 2})
    arrays = [lab.cupy.empty((n,), np.float32) for n in (4, 2, 4)]
    with pytest.raises(InputError, match=r"needs k \+ m <= n .*, but 5 > 4 at k=3, m=2, n=4"):
        kernel(arrays[:2], {"n": 4, "m": 2, "k": 3}, arrays[2:])


def test_a_device_is_needed_for_a_call_alone(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(loaded, "find_cupy", lambda: None)
        kernel = CudaLoopKernel(programs()["doubled"], DEVICES["sm_90"], {})
        with pytest.raises(DeviceError, match=r"doubled: compiled for sm_90, and CuPy finds no CUDA device"):
            kernel([], {}, [])
    kernel = CudaLoopKernel(programs()["doubled"], DEVICES["sm_80"], {})
    with pytest.raises(
        DeviceError, match=r"doubled: compiled for sm_80, .* is sm_90; compile with target='cuda:sm_90'"
    ):
        kernel([], {}, [])
