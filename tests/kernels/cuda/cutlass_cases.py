"""Epilogues of CUTLASS kernels, and what they are in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mirage.ir.functions import FUNCTIONS
from mirage.kernels.cuda.cutlass_gemm import Epilogue, EpilogueOperand, OperandKind

_ELEMENTS = EpilogueOperand(OperandKind.ELEMENTS, "float16")
_ROWS = EpilogueOperand(OperandKind.ROWS, "float32")
_COLUMNS = EpilogueOperand(OperandKind.COLUMNS, "bfloat16")
_MATRIX = EpilogueOperand(OperandKind.MATRIX, "float32")

PLAIN = Epilogue()
SILU_RESIDUAL = Epilogue((_ELEMENTS,), (("sum",), ("sigmoid", 0), ("multiply", 0, 1), ("operand", 0), ("add", 2, 3)))
ALL_OPERANDS = Epilogue(
    (_ELEMENTS, _ROWS, _COLUMNS, _MATRIX),
    (
        ("sum",), ("operand", 1), ("multiply", 0, 1), ("operand", 2), ("add", 2, 3), ("operand", 0), ("subtract", 4, 5),
        ("operand", 3), ("multiply", 6, 7), ("constant", 0.5), ("add", 8, 9),
    ),
)  # fmt: skip
EPILOGUES = {
    "none": PLAIN,
    "silu and residual": SILU_RESIDUAL,
    "all operands": ALL_OPERANDS,
    "gelu": Epilogue((), (("sum",), ("gauss_cdf", 0), ("multiply", 0, 1))),
    "bias and relu": Epilogue((_COLUMNS,), (("sum",), ("operand", 0), ("add", 0, 1), ("relu", 2))),
    "softplus": Epilogue((), (("sum",), ("exp", 0), ("constant", 1.0), ("add", 1, 2), ("log", 3))),
    "square root": Epilogue((), (("sum",), ("absolute", 0), ("sqrt", 1), ("negative", 2))),
    "limits": Epilogue((), (("sum",), ("clamp", 0, -0.5, 1.5), ("maximum", 1, 0.25))),
    "bounded": Epilogue((_ROWS,), (("sum",), ("tanh", 0), ("erf", 1), ("operand", 0), ("divide", 2, 3))),
}

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    n: getattr(np, n) for n in ("add", "subtract", "multiply", "divide", "negative", "absolute")
}


def reference(epilogue: Epilogue, total: Any, operands: Sequence[Any]) -> Any:
    """An epilogue of arrays that broadcast."""
    values: list[Any] = []
    for name, *arguments in epilogue.steps:
        if name == "sum":
            values.append(total)
        elif name == "operand":
            values.append(operands[arguments[0]])
        elif name == "constant":
            values.append(arguments[0])
        elif name in _FUNCTIONS:
            values.append(_FUNCTIONS[name](*(values[v] for v in arguments)))
        else:
            values.append(FUNCTIONS[name].numpy(values[arguments[0]], *arguments[1:]))
    return values[-1]
