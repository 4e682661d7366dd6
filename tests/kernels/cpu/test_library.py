"""The library version on the CPU: products of weights with windows are our own convolutions."""

from __future__ import annotations

import gc
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import InputError
from mirage.ir.axes import to_axes
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.kernels.cpu import library
from mirage.kernels.cpu.compile import shipped, toolchain
from mirage.kernels.cpu.launch import convolution
from mirage.kernels.cpu.library import Convolution, CpuLibraryProgram
from tests.api.small import PATIENCE
from tests.api.test_convolutions import PROGRAMS
from tests.kernels.kernels import bound, error, random_inputs

T = mi.tensor


@pytest.fixture(scope="module", autouse=True)
def compiled(cache_dir: Path) -> None:
    for dtype in convolution.REALS:
        convolution.convolution_library(dtype)


def steps_of_two(x: Any, w: Any) -> Any:
    return mi.convolution(x, w, strides=2, padding=((1, 0), (0, 2)), dilations=(2, 1))


def with_residual(x: Any, w: Any, bias: Any) -> Any:
    return mi.relu(x + (mi.convolution(x, w, padding=1) + bias))


def residual_in_another_order(x: Any, w: Any, y: Any) -> Any:
    return mi.convolution(x, w, padding=1) + mi.transpose(y, (3, 0, 1, 2))


def clamped(x: Any, w: Any) -> Any:
    return mi.clamp(mi.convolution(x, w), 0, 6)


def two_of_one(x: Any, v: Any, w: Any) -> Any:
    return mi.relu(mi.convolution(x, v, padding=1)) + mi.convolution(x, w, padding=1, groups=2)


def added_together(x: Any, w: Any) -> Any:
    return mi.convolution(x, w) + mi.convolution(x, w, dilations=2, padding=((1, 0), (1, 0)))


def computed_weights(x: Any, w: Any, scale: Any) -> Any:
    return mi.convolution(x, w * scale, padding=1)


def cropped_pools(x: Any, w: Any, bias: Any) -> Any:
    return mi.max_pool(mi.convolution(x, w, padding=1, groups=3) + bias, (2, 3))


def in_time(x: Any, w: Any) -> Any:
    return mi.convolution(x, w, padding=((4, 0),), dilations=2)


def volumes(x: Any, w: Any) -> Any:
    return mi.exp(mi.convolution(x, w, padding=1, strides=(1, 2, 1)))


X, W = T("b", 6, "h", "w"), T(6, 6, 3, 3)
CASES: Mapping[str, tuple[Any, dict[str, Any], int]] = {
    "steps_of_two": (steps_of_two, {"x": T("b", 6, "2*h", "2*w"), "w": T(5, 6, 3, 2)}, 1),
    "with_residual": (with_residual, {"x": X, "w": W, "bias": T(6, 1, 1)}, 1),
    "residual_in_another_order": (residual_in_another_order, {"x": X, "w": W, "y": T(6, "h", "w", "b")}, 1),
    "clamped": (clamped, {"x": X, "w": T(9, 6, 2, 2)}, 1),
    "two_of_one": (two_of_one, {"x": X, "v": W, "w": T(6, 3, 3, 3)}, 2),
    "added_together": (added_together, {"x": X, "w": T(4, 6, 2, 2)}, 2),
    "computed_weights": (computed_weights, {"x": X, "w": W, "scale": T(6, 1, 1, 1)}, 1),
    "cropped_pools": (cropped_pools, {"x": T("b", 6, "2*h", "3*w"), "w": T(9, 2, 3, 3), "bias": T(9, 1, 1)}, 1),
    "in_time": (in_time, {"x": T("b", 6, "h"), "w": T(4, 6, 3)}, 1),
    "volumes": (volumes, {"x": T("b", 2, "h", "2*w", "h"), "w": T(3, 2, 3, 3, 3)}, 1),
}
SIZES = ({"b": 2, "h": 7, "w": 9}, {"b": 1, "h": 3, "w": 4}, {"b": 3, "h": 32, "w": 5})


def traced(name: str) -> Program:
    fn, specs, _ = CASES[name]
    return mi.trace(fn, name, **specs)


def sizes_of(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    return {s: n for s, n in sizes.items() if s in program.symbols()}


def convolutions(run: CpuLibraryProgram) -> list[Convolution]:
    return [step.run for _, step in run._calls.computed() if isinstance(step.run, Convolution)]


def check(program: Program, run: CpuLibraryProgram, sizes: Mapping[str, int]) -> None:
    inputs = random_inputs(program, sizes)
    wanted = run_reference(program, inputs, sizes, "float64")
    found = run(inputs, sizes)
    assert error(found, wanted) < bound(program.dtype)
    given = [np.full_like(f, np.nan) for f in found]
    assert all(a is b and np.array_equal(a, f) for a, b, f in zip(run(inputs, sizes, given), given, found, strict=True))


@pytest.mark.parametrize("constants", [(), ("w", "v")], ids=["given", "constant"])
@pytest.mark.parametrize("name", CASES)
def test_convolutions_are_called(name: str, constants: tuple[str, ...]) -> None:
    program = traced(name)
    run = CpuLibraryProgram(to_axes(program), constants)
    assert len(convolutions(run)) == CASES[name][2]
    for sizes in SIZES:
        check(program, run, sizes_of(program, sizes))


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_the_search(name: str) -> None:
    program = PROGRAMS[name].trace()
    (sizes,) = PROGRAMS[name].sizes.values()
    check(program, CpuLibraryProgram(to_axes(program), PROGRAMS[name].constants), sizes)


def test_what_follows_is_part_of_the_call() -> None:
    run = CpuLibraryProgram(to_axes(traced("with_residual")))
    (found,) = convolutions(run)
    assert found.bias and found.other is not None and found.least == 0
    assert len(run._calls.computed()) == 2  # the packed weights are the other one
    (found,) = convolutions(CpuLibraryProgram(to_axes(traced("clamped"))))
    assert (found.least, found.most) == (0, 6)


def test_what_is_read_twice_is_not_part_of_the_call() -> None:
    def fn(x: Any, w: Any, bias: Any) -> Any:
        y = mi.convolution(x, w, padding=1)
        return mi.relu(y + bias), y

    program = mi.trace(fn, "twice", x=X, w=W, bias=T(6, 1, 1))
    run = CpuLibraryProgram(to_axes(program))
    (found,) = convolutions(run)
    assert not found.bias and found.least == -np.inf
    check(program, run, SIZES[0])


def test_nan_passes_the_bounds() -> None:
    program = traced("with_residual")
    inputs = random_inputs(program, SIZES[0])
    inputs[2][1] = np.nan
    (found,) = CpuLibraryProgram(to_axes(program))(inputs, SIZES[0])
    (wanted,) = run_reference(program, inputs, SIZES[0], "float64")
    assert np.array_equal(np.isnan(found), np.isnan(wanted)) and np.isnan(found).any()


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_types(dtype: str) -> None:
    specs = {"x": T("b", 6, "h", "w", dtype=dtype), "w": T(4, 6, 3, 3, dtype=dtype)}
    program = mi.trace(lambda x, w: mi.convolution(x, w), "typed", **specs)
    run = CpuLibraryProgram(to_axes(program))
    assert len(convolutions(run)) == (dtype == "float64")
    check(program, run, SIZES[0])


def test_constants_are_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[Any] = []

    def counted(w: Any, *, groups: int) -> Any:
        packed.append(convolution.pack(w, groups=groups))
        return packed[-1]

    monkeypatch.setattr(library, "pack", counted)
    program, sizes = traced("with_residual"), SIZES[0]
    run = CpuLibraryProgram(to_axes(program), ["w"])
    inputs = random_inputs(program, sizes)
    for _ in range(3):
        run(inputs, sizes)
    assert len(packed) == 1
    inputs[1][...] = 0
    run.forget()
    (found,) = run(inputs, sizes)
    assert len(packed) == 2
    assert np.array_equal(found, np.maximum(inputs[0] + inputs[2], 0))
    # the copies go with the array
    (copies,) = (c for *_, c in run._packed.values())
    assert len(copies) == 1
    del inputs
    gc.collect()
    assert len(copies) == 0


def test_weights_whose_rows_are_apart_have_copies_of_their_own() -> None:
    """Of weights in groups that are not contiguous, each call makes an array, where one before was."""
    program = mi.trace(lambda x, w: mi.convolution(x, w, padding=1, groups=2), "grouped", x=X, w=T(6, 3, 3, 3))
    run, sizes = CpuLibraryProgram(to_axes(program), ["w"]), SIZES[0]
    assert len(convolutions(run)) == 1
    wide = [np.random.default_rng(k).standard_normal((12, 3, 3, 3)).astype(np.float32) for k in range(4)]
    x, _ = random_inputs(program, sizes)
    for w in (w[::2] for w in wide + wide):
        assert error(run([x, w], sizes), run_reference(program, [x, w], sizes, "float64")) < bound("float32")


def test_copies_belong_to_what_is_given() -> None:
    torch = pytest.importorskip("torch", reason="tensors of PyTorch; pip install torch")
    program, sizes = traced("clamped"), SIZES[0]
    run = CpuLibraryProgram(to_axes(program), ["w"])
    tensors = [torch.from_numpy(a) for a in random_inputs(program, sizes)]
    (copies,) = (c for *_, c in run._packed.values())
    for _ in range(2):
        found = run([t.numpy() for t in tensors], sizes, given=tensors)
        assert error(found, run_reference(program, [t.numpy() for t in tensors], sizes, "float64")) < bound("float32")
        assert len(copies) == 1
        # torch counts the change
        tensors[1] *= 2


def test_nobody_waits_for_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it has made the code, in the background, NumPy multiplies."""
    begun = threading.Event()
    monkeypatch.setenv("MIRAGE_CFLAGS", "-Og -DOF_NOBODY_ELSE")
    monkeypatch.setattr(toolchain, "compile", lambda source, name: begun.set())
    program = traced("with_residual")
    run = CpuLibraryProgram(to_axes(program), ["w"])
    assert begun.wait(PATIENCE)
    assert not convolutions(run)
    check(program, run, SIZES[0])


def test_without_a_compiler_numpy_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    monkeypatch.setattr(shipped, "find", lambda source, suffix: None)
    program = traced("with_residual")
    run = CpuLibraryProgram(to_axes(program), ["w"])
    assert not convolutions(run)
    check(program, run, SIZES[0])


def test_wrong_arrays_are_named() -> None:
    run = CpuLibraryProgram(to_axes(traced("clamped")), ["w"])
    x, w = random_inputs(traced("clamped"), SIZES[0])
    with pytest.raises(InputError, match="x has shape"):
        run([x[:, :5], w], SIZES[0])
    with pytest.raises(InputError, match="w has dtype float64"):
        run([x, w.astype(np.float64)], SIZES[0])


def test_a_result_runs_it_where_it_is_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing was found."""
    fn, specs, _ = CASES["with_residual"]
    program = mi.trace(fn, "with_residual", **specs)
    result = mi.superoptimize(program, sizes=SIZES[0], constants=["w"], budget=0.5, cache=False)
    assert isinstance(result._library, CpuLibraryProgram) and convolutions(result._library)
    inputs = random_inputs(program, SIZES[0])
    wanted = run_reference(program, inputs, SIZES[0], "float64")
    assert error([result(*inputs)], wanted) < bound("float32")
