"""The race of convolutions: each layer is the program beside it, and the table."""

from __future__ import annotations

from inspect import signature

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

import mirage as mi  # noqa: E402
from benchmarks.flow.convolutions import CASES, FOUND, OWN, ConvolutionRow, convolution_table, measure  # noqa: E402
from mirage.errors import InputError  # noqa: E402
from mirage.ir.interpret import run_reference  # noqa: E402


@pytest.mark.parametrize("name", CASES)
def test_programs_are_their_layers(name: str) -> None:
    case = CASES[name]
    model = case.make().eval().requires_grad_(False).double()
    parameters = [p.numpy() for p in model.parameters()]
    names = list(signature(case.program).parameters)[1:]
    specs = {n: mi.tensor(*p.shape) for n, p in zip(names, parameters, strict=True)}
    program = mi.trace(case.program, x=mi.tensor("b", case.channels, 9, 11), **specs)
    x = np.random.default_rng(0).standard_normal((2, case.channels, 9, 11))
    (found,) = run_reference(program, [x, *parameters], {"b": 2}, "float64")
    np.testing.assert_allclose(found, model(torch.from_numpy(x)).numpy(), rtol=1e-9, atol=1e-9)


def test_a_name_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="no layer is named 5 by 5; choose from 3 by 3, "):
        list(measure(["5 by 5"]))


def test_table() -> None:
    rows = [
        ConvolutionRow("3 by 3", 1, {FOUND: 4.0, OWN: 2.0, "PyTorch": 8.0}, 1.0, 1),
        ConvolutionRow("small", 8, {FOUND: 2.0, OWN: 2.0, "PyTorch": 4.0, "OpenVINO": 1.0}, 1.0, 0),
    ]
    table = convolution_table(rows)
    assert table.header == [
        "layer", "batch", "kernels", "found, us", "own library, us", "PyTorch, us", "OpenVINO, us", "limit, us", "ratio of found",
        "ratio of own library",
    ]  # fmt: skip
    assert table.rows == [
        ["3 by 3", "1", "1", "4", "2", "8", "", "1", "2.00", "4.00"],
        ["small", "8", "0", "2", "2", "4", "1", "1", "0.50", "0.50"],
        ["mean of times over found", "", "", "1.00", "0.71", "2.00", "0.50", "", "1.00", "1.41"],
    ]
