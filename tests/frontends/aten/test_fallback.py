"""Calls of ATen's own operators within compiled programs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mirage.compilation import compile  # noqa: E402
from mirage.errors import FormatError, InputError, UnsupportedNode  # noqa: E402
from mirage.frontends.aten import fallback  # noqa: E402
from mirage.frontends.aten.importer import import_graph  # noqa: E402
from mirage.frontends.imported import Imported  # noqa: E402
from mirage.runtime.program import CallLibrary, CallPacked  # noqa: E402
from mirage.torch.compiled import CompiledGraph  # noqa: E402


def imported(fn: Any, *examples: Any) -> Imported:
    """The graph that a function of tensors makes, with every dim of its own name, as a module."""

    model = torch.nn.Module()
    model.forward = lambda *xs: fn(*xs)
    dims = tuple({i: torch.export.Dim.AUTO for i in range(x.ndim)} for x in examples)
    exported = torch.export.export(model, examples, dynamic_shapes=(dims,), strict=False)
    return import_graph(exported.run_decompositions({}).graph_module)


def run(found: Imported, *inputs: Any) -> Any:
    executable = compile(found.module, without=("superoptimize",), cache=False)
    return CompiledGraph(found, executable)(inputs)[0], executable


def called(executable: Any, kind: type) -> int:
    return sum(isinstance(i, kind) for f in executable.program for i in f.code)


def test_an_operator_of_pure_tensors_is_a_library_call() -> None:
    x = torch.randn(3, 4)
    found = imported(lambda x: torch.special.i0e(x * 2) + 1, x)
    assert dict(found.fallback) == {"aten.special_i0e.default": 1}
    assert found.reasons["aten.special_i0e.default"] == "it has no lowering"
    y = torch.randn(5, 2)
    result, executable = run(found, y)
    torch.testing.assert_close(result, torch.special.i0e(y * 2) + 1)
    assert (called(executable, CallLibrary), called(executable, CallPacked)) == (1, 0)


def test_random_numbers_are_drawn_in_order_and_not_shared() -> None:
    x = torch.zeros(4, 8)
    found = imported(lambda x: (torch.rand_like(x), torch.rand_like(x)), x)
    executable = compile(found.module, without=("superoptimize",), cache=False)
    torch.manual_seed(5)
    first, second = CompiledGraph(found, executable)([x])
    torch.manual_seed(5)
    assert torch.equal(first, torch.rand(4, 8)) and torch.equal(second, torch.rand(4, 8))


def test_element_types_that_the_ir_lacks_pass_through() -> None:
    x = torch.arange(12, dtype=torch.uint8).reshape(3, 4)
    found = imported(lambda x: (x + 250).to(torch.float32) * 2, x)
    result, _ = run(found, x)
    assert torch.equal(result, (x + 250).to(torch.float32) * 2)


def test_a_view_of_an_operand_is_a_tensor_of_its_own() -> None:
    x = torch.randn(4, 2)
    found = imported(lambda x: torch.view_as_complex(x * 2).conj() * 1j, x)
    result, _ = run(found, x)
    torch.testing.assert_close(result, torch.view_as_complex(x * 2).conj() * 1j)


def test_sizes_that_the_data_tells_become_dims() -> None:
    x = torch.tensor([1.0, 0.0, 2.0, 3.0])
    found = imported(lambda x: torch.special.i0e(x[x > 0.5]) + 1, x)
    for y in (x, torch.zeros(6), torch.ones(2)):
        result, _ = run(found, y)
        torch.testing.assert_close(result, torch.special.i0e(y[y > 0.5]) + 1)


def test_an_error_of_aten_names_the_operator() -> None:
    x, ids = torch.randn(3, 4), torch.tensor([0, 2])
    found = imported(lambda x, ids: torch.special.i0e(torch.ops.aten.index_fill(x, 0, ids, 0.0)), x, ids)
    with pytest.raises(InputError, match="index"):
        run(found, x, torch.tensor([7, 1]))


def call(*args: Any, **kwargs: Any) -> str:
    return json.dumps([args, kwargs])


@pytest.mark.parametrize(
    "op",
    ["aten.from_file.default", "aten.add_.Tensor", "aten.set_.source_Tensor", "aten.resize_.default", "aten.add.out"],
)
def test_operators_that_write_or_reach_outside_are_refused(op: str) -> None:
    with pytest.raises(UnsupportedNode, match="writes to its operands, or reaches outside"):
        fallback.packed(np.ones(3, np.float32), op=op, call=call({"tensor": 0}))


@pytest.mark.parametrize("op", ["aten.add", "aten.nothing.default", "nothing.add.Tensor", "__class__.x.y", "aten.__init__.x"])
def test_names_of_no_operator_are_refused(op: str) -> None:
    with pytest.raises(FormatError, match="there is no operator"):
        fallback.packed(np.ones(3, np.float32), op=op, call=call({"tensor": 0}))


@pytest.mark.parametrize("text", ["", "[]", "3", "[[], []]", '[[{"x": 1}], {}]', '[[{"torch": "load"}], {}]', "[" * 99])
def test_arguments_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(FormatError):
        fallback.packed(np.ones(3, np.float32), op="aten.exp.default", call=text)


@pytest.mark.parametrize(
    "op", ["aten.special_i0e.default", "aten.mode.default", "aten.t.default", "aten.channel_shuffle.default"]
)
def test_results_are_written_where_they_belong(op: str) -> None:
    # with overloads of torch's that write to tensors (one, two), and without: one whose result is a view, one without any
    x = torch.randn(2, 4, 3, 2) if "shuffle" in op else torch.randn(4, 3)
    args = ({"tensor": 0}, 2) if "shuffle" in op else ({"tensor": 0},)
    found = fallback.operator(op)(x, *args[1:])
    wanted = list(found) if isinstance(found, tuple) else [found]
    outputs = [np.empty(tuple(y.shape), fallback.to_array(y).dtype) for y in wanted]
    fallback.library([x.numpy()], outputs, op=op, call=call(*args))
    for a, y in zip(outputs, wanted, strict=True):
        assert torch.equal(torch.from_numpy(a), y)


def test_a_result_of_another_shape_is_no_result() -> None:
    with pytest.raises(InputError, match=r"gives \[3\], where torch says \[4\]"):
        fallback.library(
            [np.ones(3, np.float32)], [np.ones(4, np.float32)], op="aten.special_i0e.default", call=call({"tensor": 0})
        )


def test_nothing_copies_into_an_array() -> None:
    x = np.ones(3, np.float32)
    x.setflags(write=False)
    with pytest.raises(FormatError, match="effects of their own"):
        fallback.packed(x, x, op=fallback.COPY, call=call({"tensor": 0}, {"tensor": 1}))
    assert (x == 1).all()


def test_a_saved_program_finds_aten_in_a_process_of_its_own(tmp_path: Any) -> None:
    x = torch.randn(3, 4)
    executable = compile(imported(torch.special.i0e, x).module, without=("superoptimize",), cache=False)
    executable.save(tmp_path / "program.mirage")
    np.save(tmp_path / "x.npy", x.numpy())
    code = (
        "import numpy, mirage, sys; run = mirage.load_executable(sys.argv[1] + '/program.mirage'); "
        "numpy.save(sys.argv[1] + '/y.npy', run(numpy.load(sys.argv[1] + '/x.npy'))[0])"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "y.npy")), torch.special.i0e(x))
