"""Every overload that torch counts among its core operators: imported, and run beside eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="torch's own tests need it")

from mirage.frontends.aten.importer import import_graph  # noqa: E402
from tests.frontends.aten import opinfo  # noqa: E402

aten = torch.ops.aten


def floats(*shape: int) -> Any:
    return torch.randn(shape)


def positive(*shape: int) -> Any:
    return torch.rand(shape) / 2 + 0.25


def integers(*shape: int, below: int = 5) -> Any:
    return torch.randint(0, below, shape)


torch.manual_seed(0)
X, Y, ROW = floats(3, 4), floats(3, 4), floats(4)
M, N = integers(3, 4), integers(3, 4) + 1
B = floats(3, 4) > 0
IMAGE, VOLUME = floats(2, 3, 6, 8), floats(2, 3, 4, 6, 8)

UNARY = (
    "abs alias any asinh atan ceil clone cos cosh erf exp expm1 floor gelu isinf isnan leaky_relu logical_not mean "
    "neg nonzero prod reciprocal relu round sigmoid sign sin sinh tan tanh trunc argmax argmin sort elu hardtanh"
)
POSITIVE = "acos asin atanh log log10 log1p log2 rsqrt sqrt"
BINARY = (
    "add sub mul div eq ge gt le lt ne maximum minimum atan2 remainder fmod logical_and logical_or logical_xor copy"
)
SCALAR = "add sub mul div eq ge gt le lt ne remainder fmod"

#: overload -> arguments, and keyword arguments in a dict behind them
CALLS: dict[str, tuple[Any, ...]] = {
    **{f"{name}.default": (X,) for name in UNARY.split()},
    **{f"{name}.default": (positive(3, 4),) for name in POSITIVE.split()},
    **{
        f"{name}.{'Tensor' if hasattr(getattr(aten, name), 'Tensor') else 'default'}": (X, Y) for name in BINARY.split()
    },
    **{f"{name}.Scalar": (X, 1.5) for name in SCALAR.split()},
    **{f"bitwise_{name}.Tensor": (M, N) for name in ("and", "or", "xor")},
    **{f"bitwise_{name}.Scalar": (M, 6) for name in ("and", "or", "xor")},
    **{f"pow.{name}": args for name, args in {"Tensor_Tensor": (positive(3, 4), Y), "Tensor_Scalar": (X, 3)}.items()},
    **{f"div.{name}_mode": (M, y, {"rounding_mode": "trunc"}) for name, y in {"Tensor": N, "Scalar": 3}.items()},
    **{f"sym_{name}": (X,) for name in ("numel.default", "storage_offset.default")},
    **{f"sym_{name}.int": (X, 1) for name in ("size", "stride")},
    **{f"reflection_pad{n}d.default": (VOLUME[0, 0] if n == 1 else VOLUME[0], [1] * 2 * n) for n in (1, 2, 3)},
    **{f"replication_pad{n}d.default": (VOLUME[0], [1, 2] * n) for n in (2, 3)},
    **{f"{name}_avg_pool1d.default".removeprefix("_"): (IMAGE[0], [3]) for name in ("", "adaptive")},
    "_adaptive_avg_pool2d.default": (IMAGE, [4, 3]),
    "_adaptive_avg_pool3d.default": (VOLUME, [3, 4, 3]),
    "_cdist_forward.default": (X, floats(5, 4), 2.0, None),
    "_embedding_bag.default": (floats(7, 4), integers(6), torch.tensor([0, 2, 3])),
    "_fft_c2r.default": (torch.randn(3, 5, dtype=torch.complex64), [1], 0, 8),
    "_fft_r2c.default": (X, [1], 0, True),
    "_log_softmax.default": (X, 1, False),
    "_native_batch_norm_legit.default": (IMAGE, floats(3), floats(3), floats(3), positive(3), True, 0.1, 1e-5),
    "_native_batch_norm_legit.no_stats": (IMAGE, floats(3), floats(3), True, 0.1, 1e-5),
    "_native_batch_norm_legit_no_training.default": (IMAGE, floats(3), floats(3), floats(3), positive(3), 0.1, 1e-5),
    "_pdist_forward.default": (X, 2.0),
    "_softmax.default": (X, 0, False),
    "_to_copy.default": (X, {"dtype": torch.int64}),
    "acosh.default": (positive(3, 4) + 1,),
    "addmm.default": (ROW, X, floats(4, 4), {"beta": 0.5, "alpha": 2}),
    "amax.default": (X, [0]),
    "amin.default": (X, [-1], True),
    "any.dim": (B, 1),
    "any.dims": (B, [0, 1]),
    "arange.start_step": (1, 20, 3),
    "as_strided.default": (X, [2, 3], [4, 1], 0),
    "avg_pool2d.default": (IMAGE, [2, 3], [2, 2], [1, 1], True, False),
    "avg_pool3d.default": (VOLUME, [2], [2]),
    "bitwise_not.default": (M,),
    "bmm.default": (floats(2, 3, 4), floats(2, 4, 5)),
    "cat.default": ([X, Y], 1),
    "clamp.default": (X, -0.5, 0.5),
    "clamp.Tensor": (X, ROW),
    "col2im.default": (floats(2, 12, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]),
    "constant_pad_nd.default": (X, [1, 2], 0.5),
    "convolution.default": (IMAGE, floats(4, 3, 3, 3), floats(4), [2, 1], [1, 1], [1, 1], False, [0, 0], 1),
    "cumsum.default": (X, 1),
    "diagonal.default": (X, 1),
    "embedding.default": (X, integers(2, 5, below=3)),
    "empty.memory_format": ([3, 4],),
    "empty_strided.default": ([3, 4], [4, 1]),
    "expand.default": (ROW, [3, 4]),
    "fill.Scalar": (X, 2.5),
    "flip.default": (X, [0, 1]),
    "full.default": ([3, 4], 1.5),
    "full_like.default": (X, 1.5),
    "gather.default": (X, 1, integers(3, 2, below=4)),
    "grid_sampler_2d.default": (IMAGE, torch.rand(2, 4, 5, 2) * 2 - 1, 0, 0, False),
    "index.Tensor": (X, [integers(5, below=3), None]),
    "index_put.default": (X, [integers(5, below=3)], floats(5, 4), True),
    "index_select.default": (X, 1, integers(5, below=4)),
    "masked_scatter.default": (X, B, Y),
    "max.dim": (X, 1),
    "max_pool2d_with_indices.default": (IMAGE, [3, 2], [2], [1, 1]),
    "max_pool3d_with_indices.default": (VOLUME, [2], [2], [0], [1], True),
    "mean.dim": (X, [0], True),
    "min.dim": (X, 0),
    "mm.default": (X, floats(4, 5)),
    "native_group_norm.default": (floats(2, 4, 5), floats(4), floats(4), 2, 4, 5, 2, 1e-5),
    "native_layer_norm.default": (X, [4], ROW, ROW, 1e-5),
    "permute.default": (IMAGE, [0, 2, 3, 1]),
    "pow.Scalar": (2.5, X),
    "prod.dim_int": (X, 1),
    "repeat.default": (X, [2, 1, 3]),
    "scalar_tensor.default": (2.5,),
    "scatter.value": (X, 1, integers(3, 2, below=4), 2.0),
    "scatter.src": (X, 0, torch.tensor([[2, 0, 1, 1]]), Y),
    "scatter_add.default": (X, 1, integers(3, 2, below=4), Y),
    "scatter_reduce.two": (X, 1, integers(3, 2, below=4), Y, "sum"),
    "select.int": (X, 1, 2),
    "select_scatter.default": (X, ROW, 0, 1),
    "slice.Tensor": (X, 1, 1, 4, 2),
    "slice_scatter.default": (X, Y[:2], 0, 1, 3),
    "split_with_sizes.default": (X, [1, 3], 1),
    "squeeze.dim": (X[:1], 0),
    "squeeze.dims": (X[:1, :1], [0, 1]),
    "sum.dim_IntList": (X, [1]),
    "topk.default": (X, 2),
    "unsqueeze.default": (X, 1),
    "upsample_bilinear2d.vec": (IMAGE, [9, 5], True, None),
    "upsample_nearest2d.vec": (IMAGE, None, [2.0, 1.5]),
    "var.correction": (X, [1], {"correction": 0}),
    "var.dim": (X, [1]),
    "view.default": (X, [2, 6]),
    "where.self": (B, X, Y),
}
#: overloads with what makes a graph of them
WITHIN: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "_local_scalar_dense.default": (lambda n, x: x * n.item(), (torch.tensor(3), X)),
    "atan2.out": (lambda x, y: torch.atan2(x, y, out=torch.empty(3, 4)), (X, Y)),
}
#: overloads that change the memory of a tensor, or say what it is
OF_MEMORY = {"resize_.default", "sym_is_contiguous.default"}
#: overloads that may call ATen
FALLBACK = {
    "_embedding_bag.default",
    "_fft_c2r.default",
    "_fft_r2c.default",
    "_local_scalar_dense.default",
}


def core() -> set[str]:
    """The names of the core overloads, but for gradients and random numbers."""
    found = set()
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace == "aten" and "backward" not in packet:
            op = getattr(getattr(aten, packet), overload or "default")
            if torch.Tag.core in op.tags and torch.Tag.nondeterministic_seeded not in op.tags:
                found.add(f"{packet}.{overload or 'default'}")
    return found


def test_every_core_overload_has_a_call() -> None:
    assert core() == CALLS.keys() | WITHIN.keys() | OF_MEMORY


@pytest.mark.parametrize("name", sorted(CALLS.keys() | WITHIN.keys()))
def test_core(name: str, record_property: Callable[[str, object], None]) -> None:
    packet, _, overload = name.partition(".")
    op, args = WITHIN.get(name) or (getattr(getattr(aten, packet), overload), CALLS[name])
    options = args[-1] if isinstance(args[-1], dict) else {}
    call, tensors = opinfo.function_of(op, args[:-1] if options else args, options)
    with opinfo.tracing():
        imported = import_graph(opinfo.graph_of(call, tensors))
    found, wanted = opinfo.interpreted(imported, [t.clone() for t in tensors]), call(*tensors)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        if "empty" in name or not isinstance(b, torch.Tensor):
            assert a == b if not isinstance(b, torch.Tensor) else a.shape == b.shape
        else:
            torch.testing.assert_close(a, b, equal_nan=True)
    assert not imported.fallback or name in FALLBACK, imported.reasons
    record_property("core", "calls of ATen" if imported.fallback else "native")
