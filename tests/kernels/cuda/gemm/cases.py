"""Epilogues of CUTLASS kernels, what they are in NumPy, and products to compute with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mirage.ir.functions import FUNCTIONS
from mirage.ir.types import DTYPES, epsilon
from mirage.kernels.cuda.gemm.gemm import Epilogue, Gemm, GemmCall

PLAIN = Epilogue()
SILU_RESIDUAL = Epilogue(("float16",), (("sigmoid", 0), ("multiply", 0, 2), ("add", 3, 1)))
#: of elements, rows, columns and matrices
ALL_OPERANDS = Epilogue(
    ("float16", "float32", "bfloat16", "float32"),
    (("multiply", 0, 2), ("add", 5, 3), ("subtract", 6, 1), ("multiply", 7, 4), ("add", 8, 0.5)),
)
EPILOGUES = {
    "none": PLAIN,
    "silu and residual": SILU_RESIDUAL,
    "all operands": ALL_OPERANDS,
    "gelu": Epilogue((), (("gauss_cdf", 0), ("multiply", 0, 1))),
    "bias and relu": Epilogue(("bfloat16",), (("add", 0, 1), ("relu", 2))),
    "softplus": Epilogue((), (("exp", 0), ("add", 1, 1.0), ("log", 2))),
    "square root": Epilogue((), (("absolute", 0), ("sqrt", 1), ("negative", 2))),
    "limits": Epilogue((), (("clamp", 0, -0.5, 1.5), ("maximum", 1, 0.25))),
    "bounded": Epilogue(("float32",), (("tanh", 0), ("erf", 2), ("divide", 3, 1))),
}
#: the shapes of operands in order, of (batch, rows, columns); of the first ones where there are fewer
_SHAPES: tuple[Callable[[int, int, int], tuple[int, int, int]], ...] = (
    lambda b, m, n: (b, m, n), lambda b, m, n: (b, m, 1), lambda b, m, n: (1, 1, n), lambda b, m, n: (b, 1, 1),
)  # fmt: skip

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    n: getattr(np, n) for n in ("add", "subtract", "multiply", "divide", "negative", "absolute")
}


def reference(epilogue: Epilogue, total: Any, operands: Sequence[Any]) -> Any:
    """An epilogue of arrays that broadcast."""
    values: list[Any] = [total, *operands]
    for name, *arguments in epilogue.steps:
        function = _FUNCTIONS[name] if name in _FUNCTIONS else FUNCTIONS[name].numpy
        values.append(function(*(values[a] if isinstance(a, int) else a for a in arguments)))
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
        kinds = zip(gemm.epilogue.operands, _SHAPES, strict=False)
        operands = [rng.standard_normal(shape(batch, m, n)).astype(DTYPES[t]) for t, shape in kinds]
        d = np.zeros((batch, m, n), DTYPES[gemm.result])
        self.arrays = [np.ascontiguousarray(a), np.ascontiguousarray(b), d, *operands]
        total = x.astype(np.float64) @ y.astype(np.float64)
        self.wanted = reference(gemm.epilogue, total, [o.astype(np.float64) for o in operands])

    def call(self, addresses: Sequence[int]) -> GemmCall:
        """The launch for arrays at these addresses."""
        batch, m, n, k = self.sizes
        operands = []
        for p, v in zip(addresses[3:], self.arrays[3:], strict=True):
            by_batch, by_row, by_column = (
                s // v.itemsize if n > 1 else 0 for n, s in zip(v.shape, v.strides, strict=True)
            )
            operands.append((p, by_row, by_column, by_batch))
        a, b, d = ((p, t.shape[2], t[0].size) for p, t in zip(addresses[:3], self.arrays[:3], strict=True))
        return GemmCall(m, n, k, batch, a, b, d, tuple(operands))

    def check(self, found: np.ndarray) -> None:
        """Compare a result with float64."""
        scale = max(1, np.abs(self.wanted).max())
        atol = 2 * epsilon(DTYPES[self.gemm.result]) * scale + 1e-5
        np.testing.assert_allclose(found.astype(np.float64), self.wanted, rtol=0, atol=atol)
