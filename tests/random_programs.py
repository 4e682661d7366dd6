"""Random programs over all kinds of operators, their sizes, and arrays of all kinds of strides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from random import Random

import numpy as np

from mirage.errors import AxisError, ShapeError
from mirage.ir.axes import to_axes
from mirage.ir.dims import evaluate
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import DTYPES, tensor

SYMBOLS = ("m", "n", "k")
#: one, primes, and about a vector and a tile
SIZES = (1, 2, 3, 5, 7, 13, 15, 16, 17, 31, 33, 47, 64, 67)
#: elements of the largest value of a program
MOST_ELEMENTS = 20_000

_DIMS = ["m", "n", "k", "m", "n", "k", 1, 3, 8, "2*n"]
_UNARY = ["neg", "square", "exp", "relu", "sigmoid", "tanh", "silu", "gelu"]
_KINDS = ["unary", "unary", "binary", "binary", "binary", "matmul", "matmul", "matmul", "number"]
_KINDS += ["reduce", "reduce", "norm", "norm", "move", "move", "join"]
_HALF = Fraction(1, 2)


def random_program(rng: Random, operators: int, dtype: str = "float32") -> Program:
    """A program of at most so many operators on 1 to 4 inputs that has a form over named axes.

    Matmuls, elementwise operators and constants, reductions, norms, transposes, reshapes, repeats and concats; values are
    used again, and there may be several outputs. Results are about as well conditioned as their inputs.
    """
    while True:
        p = _program(rng, operators, dtype)
        try:
            to_axes(p)
        except AxisError:
            continue
        return p


def _program(rng: Random, operators: int, dtype: str) -> Program:
    b = ProgramBuilder("random")
    # operands that share dims fit each other
    pool = rng.sample(_DIMS, 4)
    values = [
        b.input(f"x{i}", tensor(*rng.sample(pool, rng.choice((1, 2, 2, 2, 3, 3, 4))), dtype=dtype))
        for i in range(rng.randint(1, 4))
    ]
    inputs = len(values)
    while len(values) < inputs + operators:
        kind = rng.choice(_KINDS)
        for _ in range(12):
            try:
                values.append(_operator(rng, b, kind, values))
                break
            except ShapeError:
                continue
    computed = values[inputs:]
    outputs = [values[-1], *rng.sample(computed, min(rng.choice((0, 0, 1, 2)), len(computed)))]
    if rng.random() < 0.05:
        outputs.append(rng.choice(values[:inputs]))
    return b.finish(list(dict.fromkeys(outputs)))


def _operator(rng: Random, b: ProgramBuilder, kind: str, values: Sequence[int]) -> int:
    """One more value; raises ShapeError where the operands do not fit."""
    # mostly the last one, so that little is computed in vain
    x, y = rng.choice((values[-1], values[-1], rng.choice(values))), rng.choice(values)
    shape = b.type(x).shape
    rank = len(shape)
    if not rank and kind in ("reduce", "norm", "move", "join"):
        raise ShapeError(f"{kind}: a scalar has no dims")
    match kind:
        case "unary":
            return b.op(rng.choice(_UNARY), x)
        case "binary":
            op = rng.choice(["add", "sub", "mul", "div"])
            if op == "div":
                y = b.op("add", b.op("sigmoid", y), b.op("constant", value=_HALF))
            return b.op(op, x, y)
        case "matmul":
            if rng.random() < 0.5 and len(b.type(y).shape) >= 2:
                perm = list(range(len(b.type(y).shape)))
                y = b.op("transpose", y, perm=(*perm[:-2], perm[-1], perm[-2]))
            return b.op("matmul", x, y)
        case "number":
            value = Fraction(rng.randint(-8, 8), rng.choice((1, 3, 8)))
            match rng.randrange(4):
                case 0:
                    return b.op("clamp", x, lo=-1, hi=abs(value))
                case 1:
                    return b.op("maximum", x, value=value)
                case 2:
                    return b.op("pow", b.op("sigmoid", x), exponent=value / 4)
            return b.op(rng.choice(["add", "mul"]), x, b.op("constant", value=value))
        case "reduce":
            axes = rng.sample(range(rank), rng.randint(1, min(rank, 2)))
            return b.op(rng.choice(["sum", "mean"]), x, axes=axes, keepdims=rng.random() < 0.6)
        case "norm":
            op = rng.choice(["softmax", "softmax", "rms_norm", "layer_norm"])
            axis = rng.choice((rank - 1, rng.randrange(rank)))
            return b.op(op, x, axis=axis) if op == "softmax" else b.op(op, x, axis=axis, eps=_HALF)
        case "move":
            match rng.randrange(4):
                case 0 | 1:
                    return b.op("transpose", x, perm=rng.sample(range(rank), rank))
                case 2:
                    return b.op("repeat", x, axis=rng.randrange(rank), times=rng.choice((2, 3)))
            at = rng.randrange(rank)
            merged = (*shape[:at], -1, *shape[at + 2 :])
            return b.op("reshape", x, shape=rng.choice([merged, (*shape[:at], 1, *shape[at:])]))
    return b.op("concat", x, rng.choice((x, y)), axis=rng.randrange(rank))


def random_sizes(rng: Random, p: Program) -> dict[str, int]:
    """A size for every symbol, so that no value is large."""
    while True:
        sizes = {s: rng.choice(SIZES) for s in p.symbols()}
        if max(np.prod([evaluate(d, sizes) for d in n.type.shape], dtype=float) for n in p.nodes) <= MOST_ELEMENTS:
            return sizes


def strided_inputs(rng: Random, p: Program, sizes: Mapping[str, int]) -> list[np.ndarray]:
    """Normal inputs whose memory is of any kind: see `strided`."""
    normal = np.random.default_rng(rng.randrange(2**32))
    return [strided(rng, normal.standard_normal(t.bind(sizes)).astype(DTYPES[t.dtype])) for t in p.input_types]


def strided(rng: Random, x: np.ndarray) -> np.ndarray:
    """The array, or for stride 0 its first slices repeated, as a view of memory in another order, with gaps, backwards,
    or unaligned.
    """
    if x.ndim == 0:
        return x
    axis = rng.randrange(x.ndim)
    match rng.choice(["plain", "plain", "order", "gaps", "backwards", "stride 0", "unaligned"]):
        case "order":
            perm = rng.sample(range(x.ndim), x.ndim)
            return np.ascontiguousarray(x.transpose(perm)).transpose(np.argsort(perm))
        case "gaps":
            step, start = rng.choice((1, 2, 3)), rng.choice((0, 1, 5))
            wide = list(x.shape)
            wide[axis] = start + wide[axis] * step + rng.choice((0, 3))
            memory = np.full(wide, np.nan, x.dtype)
            view = memory[(slice(None),) * axis + (slice(start, start + x.shape[axis] * step, step),)]
            view[...] = x
            return view
        case "backwards":
            return np.flip(np.ascontiguousarray(np.flip(x, axis)), axis)
        case "stride 0":
            first = x[(slice(None),) * axis + (slice(1),)]
            return np.broadcast_to(first, x.shape)
        case "unaligned":
            raw = np.zeros(x.nbytes + 1, np.uint8)
            view = raw[1:].view(x.dtype).reshape(x.shape)
            view[...] = x
            return view
    return x
