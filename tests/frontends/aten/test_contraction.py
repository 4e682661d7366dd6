"""Lowerings of products, of attention and of convolutions, against eager."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sampled import crossed

torch = pytest.importorskip("torch")

from tests.frontends.aten.graphs import check  # noqa: E402

aten = torch.ops.aten


def floats(*shape: int) -> Any:
    """Numbers that float32 adds up without rounding."""
    return integers(*shape).float() / 4


def integers(*shape: int) -> Any:
    n = int(torch.tensor(shape).prod())
    return (torch.arange(n) * 7919 % 13 - 6).reshape(shape)


KINDS = pytest.mark.parametrize("made", [floats, integers])


@KINDS
@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4,)), ((4,), (2, 4, 5)), ((2, 3, 4), (4, 5)),
        ((1, 2, 3, 4), (3, 1, 4, 5)), ((3, 0), (0, 5)), ((2, 3, 4), (2, 4, 5)), ((0, 3), (3, 2)), ((1, 1), (1, 1)),
    ],
)  # fmt: skip
def test_matmul_of_any_rank(made: Any, x: tuple[int, ...], y: tuple[int, ...]) -> None:
    check(aten.matmul.default, made(*x), made(*y))


@KINDS
def test_products(made: Any) -> None:
    x, y = made(3, 4), made(4, 5)
    check(aten.mm.default, x, y, others=[(made(1, 0), made(0, 2)), (made(0, 7), made(7, 1))])
    check(aten.bmm.default, made(2, 3, 4), made(2, 4, 5))
    check(aten.mv.default, x, made(4))
    check(aten.dot.default, made(4), made(4))
    check(aten.addmm.default, made(5), x, y)
    check(aten.addmm.default, made(1, 5), x, y, beta=2, alpha=3)
    check(aten.addmv.default, made(3), x, made(4))
    check(aten.baddbmm.default, made(2, 3, 5), made(2, 3, 4), made(2, 4, 5), beta=2)
    check(aten.addbmm.default, made(3, 5), made(2, 3, 4), made(2, 4, 5), alpha=2, dynamic=False)


@KINDS
def test_linear(made: Any) -> None:
    check(aten.linear.default, made(2, 3, 4), made(5, 4), made(5), others=[(made(1, 0, 4), made(5, 4), made(5))])
    check(aten.linear.default, made(4), made(5, 4), made(5))
    check(aten.linear.default, made(4), made(4))


def test_factors_of_integers_are_integers() -> None:
    check(aten.addmv.default, integers(3), integers(3, 4), integers(4), beta=0.6, alpha=2.6)


def test_what_is_multiplied_with_0_does_not_count() -> None:
    check(aten.addmm.default, floats(5) * float("nan"), floats(3, 4), floats(4, 5), beta=0)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.5, float("inf")])
def test_distances(p: float) -> None:
    check(aten._cdist_forward.default, floats(2, 3, 4), floats(2, 5, 4), p, None)
    check(aten._cdist_forward.default, floats(3, 4), floats(2, 5, 4), p, None)
    check(aten._cdist_forward.default, floats(3, 0), floats(5, 0), p, None)
    check(aten._pdist_forward.default, floats(4, 3), p, dynamic=False)
    check(aten._pdist_forward.default, floats(1, 3), p, dynamic=False)


def test_trilinear() -> None:
    x, y, z = floats(3, 4), floats(5, 4, 6), floats(3, 6)
    check(aten._trilinear.default, x, y, z, [1, 3], [0], [1, 2], [2, 3], dynamic=False)


@pytest.mark.parametrize("dynamic", [(0,), False])
def test_rows_in_groups(dynamic: Any) -> None:
    pytest.importorskip("transformers.integrations.moe")
    grouped = torch.ops.transformers.grouped_mm_fallback.default
    x, weights = floats(7, 3), floats(4, 3, 5)
    ends = [torch.tensor(v, dtype=torch.int32) for v in ([2, 2, 5, 7], [0, 0, 0, 0], [7, 7, 7, 7], [1, 2, 3, 4])]
    check(grouped, x, weights, ends[0], others=[(x, weights, e) for e in ends[1:]], dynamic=dynamic)
    check(grouped, x, weights, ends[0], others=[(x, weights, ends[1])], dynamic=dynamic, compiled=True)
    check(grouped, x, floats(1, 3, 5), torch.tensor([7]), dynamic=dynamic)
    halves = (t.to(torch.bfloat16) for t in (floats(7, 8), floats(4, 8, 16)))
    check(aten._grouped_mm.default, *halves, ends[0], dynamic=dynamic)


Q, K, V = floats(2, 4, 3, 8), floats(2, 4, 5, 8) / 2, floats(2, 4, 5, 7)
attention = aten.scaled_dot_product_attention.default
#: one row attends to nothing
BOOLEAN = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]]) > 0
ADDED = torch.where(BOOLEAN, floats(3, 5), float("-inf"))


@pytest.mark.parametrize(
    ("mask", "dynamic"),
    crossed([None, BOOLEAN, ADDED, BOOLEAN[None, None], ADDED[:1].expand(2, 1, 1, 5)], [True, False]),
)
def test_masks_of_attention(mask: Any, dynamic: bool) -> None:
    check(attention, Q, K, V, mask, dynamic=dynamic)
    check(attention, Q, K, V, mask, scale=0.25, dynamic=dynamic)


def test_causal_attention_of_unequal_lengths() -> None:
    check(attention, Q, K, V, None, 0.0, True, others=[(K, Q, V[:, :, :3], None, 0.0, True)])
    check(attention, Q[0, 0], K[0, 0], V[0, 0], None, 0.0, True)


def test_attention_of_other_shapes() -> None:
    check(attention, Q, K[:, :2], V[:, :2], enable_gqa=True, dynamic=False)
    check(attention, Q[0], K[0], V[0])
    check(attention, Q, K[:1, :1], V[:1, :1], dynamic=False)
    check(attention, Q, K, V, others=[(Q[:, :, :0], K, V), (Q, K[:, :, :0], V[:, :, :0]), (Q[:1, :, :1], K[:1], V[:1])])


def test_variants_of_attention() -> None:
    flash, math = (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_attention_math.default,
    )
    for mask in (None, floats(3, 5)):
        check(flash, Q, K, K, attn_mask=mask)
        check(math, Q, K, V, mask)
    check(flash, K, K, K, 0.0, True)
    check(math, Q, K, V, BOOLEAN)
    check(math, Q, K[:, :2], V[:, :2], enable_gqa=True, dynamic=False)


def convolve(
    x: tuple[int, ...],
    w: tuple[int, ...],
    bias: bool,
    stride: int,
    padding: int,
    dilation: int = 1,
    groups: int = 1,
    **options: Any,
) -> None:
    rank = len(w) - 2
    check(
        aten.convolution.default, floats(*x), floats(*w), floats(w[0]) if bias else None,
        [stride] * rank, [padding] * rank, [dilation] * rank, False, [0] * rank, groups, **options,
    )  # fmt: skip


@pytest.mark.parametrize("dynamic", [(0,), False])
def test_convolutions_that_are_products(dynamic: Any) -> None:
    convolve((2, 3, 16, 16), (4, 3, 4, 4), True, 4, 0, dynamic=dynamic)
    convolve((2, 3, 5, 5), (4, 3, 1, 1), True, 1, 0, dynamic=dynamic)
    convolve((2, 3, 10), (4, 3, 3), True, 1, 1, dynamic=dynamic)
    convolve((2, 3, 11), (4, 3, 3), True, 2, 1, dynamic=dynamic)
    convolve((2, 3, 12), (4, 3, 3), False, 2, 0, 2, dynamic=dynamic)


def test_convolutions_of_literal_sizes() -> None:
    convolve((2, 3, 17, 19), (4, 3, 4, 4), False, 4, 0, dynamic=False)
    convolve((2, 6, 10), (6, 1, 4), True, 1, 3, 1, 6, dynamic=False)
    convolve((2, 3, 4, 8, 8), (4, 3, 2, 2, 2), True, 2, 0, dynamic=False)


@pytest.mark.parametrize("dynamic", [(0,), False])
def test_convolutions_whose_windows_overlap(dynamic: Any) -> None:
    convolve((2, 3, 9, 8), (4, 3, 3, 3), True, 1, 1, dynamic=dynamic)
    convolve((2, 6, 11, 9), (4, 3, 3, 2), False, 2, 1, 2, 2, dynamic=dynamic)
    convolve((2, 4, 7, 9), (4, 1, 3, 3), True, 1, 1, 1, 4, dynamic=dynamic)
    convolve((2, 4, 30), (6, 2, 3), True, 1, 0, 1, 2, dynamic=dynamic)
    convolve((1, 2, 5, 6, 7), (3, 2, 2, 3, 2), True, 2, 1, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [(0,), False])
def test_transposed_convolutions(dynamic: Any) -> None:
    def check_transposed(x: Any, w: Any, stride: Any, padding: Any, gaps: Any, beyond: Any, groups: int = 1) -> None:
        given = floats(*x), floats(*w), floats(w[1] * groups), stride, padding, gaps, True, beyond, groups
        check(aten.convolution.default, *given, dynamic=dynamic)

    check_transposed((2, 3, 5, 6), (3, 4, 2, 2), [2, 2], [0, 0], [1, 1], [0, 0])
    check_transposed((2, 4, 5, 6), (4, 3, 3, 4), [2, 3], [1, 2], [1, 1], [1, 0], 2)
    check_transposed((2, 3, 7), (3, 4, 3), [1], [2], [2], [0])
    check_transposed((1, 2, 3, 4, 5), (2, 2, 2, 3, 2), [2, 1, 2], [1, 0, 0], [1, 2, 1], [0, 0, 1])


def test_compiled() -> None:
    convolve((2, 3, 9, 8), (4, 3, 3, 3), True, 1, 1, dynamic=(0,), compiled=True)
    check(attention, Q, K, V, ADDED, compiled=True)
    check(aten.baddbmm.default, integers(2, 3, 5), integers(2, 3, 4), integers(2, 4, 5), beta=2, compiled=True)
    convolve((2, 3, 11), (4, 3, 3), True, 2, 1, dynamic=(0,), compiled=True)
