"""Epilogues of CUTLASS kernels, what they are in NumPy, and products to compute with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mirage.ir.functions import FUNCTIONS
from mirage.ir.types import DTYPES, epsilon
from mirage.kernels.cuda.gemm.gemm import Epilogue, EpilogueOperand, Gemm, GemmCall, Operand, OperandKind

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


class Example:
    """Arguments of a kernel for (batch, rows, columns, depth): `arrays` are A, B, D and the operands."""

    def __init__(self, gemm: Gemm, sizes: tuple[int, int, int, int]) -> None:
        self.gemm, self.sizes = gemm, sizes
        batch, m, n, k = sizes
        rng = np.random.default_rng(0)
        factors = DTYPES[gemm.dtype]
        x = rng.standard_normal((batch, m, k)).astype(factors)
        y = (rng.standard_normal((batch, k, n)) / math.sqrt(k)).astype(factors)
        a, b = x if gemm.a_by_depth else x.swapaxes(1, 2), y.swapaxes(1, 2) if gemm.b_by_depth else y
        shapes = {
            OperandKind.ELEMENTS: (batch, m, n), OperandKind.ROWS: (batch, m, 1), OperandKind.COLUMNS: (1, 1, n),
            OperandKind.MATRIX: (batch, 1, 1),
        }  # fmt: skip
        kinds = gemm.epilogue.operands
        operands = [rng.standard_normal(shapes[o.kind]).astype(DTYPES[o.dtype]) for o in kinds]
        d = np.zeros((batch, m, n), DTYPES[gemm.result])
        self.arrays = [np.ascontiguousarray(a), np.ascontiguousarray(b), d, *operands]
        total = x.astype(np.float64) @ y.astype(np.float64)
        self.wanted = reference(gemm.epilogue, total, [o.astype(np.float64) for o in operands])

    def call(self, addresses: Sequence[int]) -> GemmCall:
        """The launch for arrays at these addresses."""
        batch, m, n, k = self.sizes
        steps = {OperandKind.ELEMENTS: n, OperandKind.ROWS: 1}
        together = zip(self.gemm.epilogue.operands, addresses[3:], self.arrays[3:], strict=True)
        operands = (Operand(p, steps.get(o.kind, 0), v[0].size if len(v) == batch > 1 else 0) for o, p, v in together)
        a, b, d = ((p, t.shape[2], t[0].size) for p, t in zip(addresses[:3], self.arrays[:3], strict=True))
        return GemmCall(m, n, k, batch, a, b, d, tuple(operands))

    def check(self, found: np.ndarray) -> None:
        """Compare a result with float64."""
        scale = max(1, np.abs(self.wanted).max())
        atol = 2 * epsilon(DTYPES[self.gemm.result]) * scale + 1e-5
        np.testing.assert_allclose(found.astype(np.float64), self.wanted, rtol=0, atol=atol)
