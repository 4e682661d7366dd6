"""Element by element: special values, signs of divisions, promotion of types, reductions of few elements, against eager torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="torch's own tests need it")

from mirage.compilation import compile  # noqa: E402
from mirage.frontends.aten.importer import import_graph  # noqa: E402
from mirage.torch.compiled import CompiledGraph  # noqa: E402
from tests.frontends.aten import opinfo  # noqa: E402
from tests.sampled import crossed  # noqa: E402

FLOATS = [0.0, -0.0, 1, -1, 0.3, -0.3, 2.5, -2.5, 3.5, 7, -7, 1e-7, -1e-30, 1e30, -3e20, 20.5, -87, 88.5, 129]
FLOATS += [float("inf"), float("-inf"), float("nan")]
INTEGERS = [0, 1, -1, 2, 3, -3, 7, -7, 63, 64, -65, 2**31 - 1, -(2**31)]
UNARY = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh erf exp exp2 expm1 floor log log10 log1p log2 neg reciprocal relu round "
    "rsqrt sigmoid sign signbit sin sinh sqrt tan tanh trunc isnan isinf isfinite isposinf logical_not square sgn nan_to_num"
)
BINARY = "add sub mul div atan2 hypot copysign fmod remainder floor_divide fmax fmin maximum minimum pow xlogy logaddexp eq lt ge"
WHOLE = "add sub mul remainder fmod floor_divide maximum minimum bitwise_and bitwise_or bitwise_xor eq gt le fmax"


def compare(fn: Callable[..., Any], *args: Any, **options: Any) -> None:
    """A call is imported without calls of ATen, and gives the types, shapes and elements that eager torch gives."""
    call, tensors = opinfo.function_of(fn, args, options)
    with opinfo.tracing():
        imported = import_graph(opinfo.graph_of(call, tensors), only_native=True)
    for k, (found, wanted) in enumerate(zip(opinfo.interpreted(imported, tensors), call(*tensors), strict=True)):
        torch.testing.assert_close(found, wanted, equal_nan=True, msg=lambda m, k=k: f"output {k}: {m}")


@pytest.mark.parametrize(("name", "dtype"), crossed(UNARY.split(), [torch.float32, torch.float64, torch.float16]))
def test_functions_of_special_values(name: str, dtype: Any) -> None:
    compare(getattr(torch, name), torch.tensor(FLOATS, dtype=torch.float64).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", BINARY.split())
def test_functions_of_two_special_values(name: str, dtype: Any) -> None:
    x = torch.tensor(FLOATS, dtype=dtype)
    # eager torch gives NaN for rests of large quotients in float32
    divisors = x[x.abs() > 1e-8] if "float32" in str(dtype) and name in ("fmod", "remainder") else x
    compare(getattr(torch, name), x[:, None], divisors)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("name", WHOLE.split())
def test_integers(name: str, dtype: Any) -> None:
    x = torch.tensor(INTEGERS, dtype=dtype)
    # eager torch refuses to divide by 0
    compare(getattr(torch, name), x[:, None], x[1:])


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_rounded_divisions(mode: str | None, dtype: Any) -> None:
    x = torch.tensor(INTEGERS if dtype == torch.int64 else FLOATS, dtype=dtype)
    compare(torch.div, x[:, None], x[2:], rounding_mode=mode)


@pytest.mark.parametrize("name", ["bitwise_left_shift", "bitwise_right_shift"])
def test_shifts(name: str) -> None:
    compare(getattr(torch, name), torch.tensor(INTEGERS)[:, None], torch.tensor([0, 1, 5, 31, 62]))


@pytest.mark.parametrize("decimals", [0, 1, 3, -1])
def test_decimals(decimals: int) -> None:
    compare(torch.round, torch.tensor([*FLOATS, 0.25, 0.35, 15, 25, 1234.56785]), decimals=decimals)


OPERANDS = [
    torch.tensor([1.5, -2.0, 3.0]),
    torch.tensor([1.5, -2.0, 3.0], dtype=torch.float64),
    torch.tensor([0.5, 2.0, -3.0], dtype=torch.float16),
    torch.tensor([3, -2, 1]),
    torch.tensor([3, 2, 1], dtype=torch.int32),
    torch.tensor([True, False, True]),
    torch.tensor(2.5),
    torch.tensor(2.5, dtype=torch.float64),
    torch.tensor(3),
    torch.tensor(True),
    2,
    -1.5,
    True,
]


PAIRS = [(x, y) for x, y in product(OPERANDS, OPERANDS) if isinstance(x, torch.Tensor) or isinstance(y, torch.Tensor)]


def compare_calls(fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> None:
    """`compare` of a function for each of these arguments, all in one graph, as most of the time is that of a graph."""
    compare(lambda *calls: [fn(*args) for args in calls], *calls)


def accepted(fn: Callable[..., Any], x: Any, y: Any) -> bool:
    try:
        fn(x, y)
    except (RuntimeError, TypeError):
        return False
    return True


@pytest.mark.parametrize("name", ["add", "mul", "div", "maximum", "lt", "eq", "fmod", "logical_and", "atan2"])
def test_promotion(name: str) -> None:
    fn = getattr(torch, name)
    pairs = [(x, y) for x, y in PAIRS if accepted(fn, x, y)]
    assert len(pairs) > 50
    compare_calls(fn, pairs)


def test_promotion_of_choices() -> None:
    condition = torch.tensor([True, False, True])
    compare_calls(torch.where, [(condition, x, y) for x, y in PAIRS])


@pytest.mark.parametrize("bounds", [(None, 0.5), (-1, None), (-1, 0.5), (1.0, -1.0), (0, 1)])
def test_bounds(bounds: tuple[Any, Any]) -> None:
    compare(torch.clamp, torch.tensor(FLOATS), *bounds)
    compare(torch.clamp, torch.tensor(INTEGERS), *bounds)
    compare(torch.nn.functional.hardtanh, torch.tensor(FLOATS))


def test_booleans_as_the_least_and_largest_of_numbers() -> None:
    x, y = torch.tensor([True, False, True, False, False]), torch.tensor([True, True, False, False, True])
    compare(torch.clamp_min, x, y)
    compare(torch.clamp_max, x, y)
    compare(torch.cummax, x, 0)
    compare(torch.cummin, x, 0)
    compare(lambda x: torch.full_like(x, 6), x)
    for value in (float("-inf"), float("nan")):
        compare(lambda x, value=value: x + torch.triu(torch.full(x.shape, value), 1), torch.ones(4, 5))


REDUCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in ("sum", "mean", "amax", "amin", "var", "std", "logsumexp", "nansum", "all")},
    **{name: getattr(torch, name) for name in ("argmax", "argmin", "count_nonzero", "any", "prod", "var_mean", "std_mean")},
    **{name: getattr(torch, name) for name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")},
    "aminmax": lambda x, dim: torch.aminmax(x, dim=dim),
    "norm": lambda x, dim: torch.linalg.vector_norm(x, 3, dim),
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    x = torch.tensor([[1.0, float("nan"), 3.0, -2.0], [0.5, 0.5, float("inf"), -0.0], [2.0, 7.0, 7.0, 1.0]])
    if name in ("var_mean", "std_mean"):
        # eager torch says that the mean is NaN, too, where an element is infinite
        x[1, 2] = 4.0
    for dim in (0, -1):
        compare(REDUCTIONS[name], x, dim)
        compare(REDUCTIONS[name], x[:1], dim)
    compare(REDUCTIONS[name], x[2, 3], 0)
    if name not in ("amax", "amin", "argmax", "argmin", "aminmax"):
        compare(REDUCTIONS[name], x[:0], 0)


@pytest.mark.parametrize("correction", [0, 1, 3, 5])
def test_variances_of_few_elements(correction: int) -> None:
    for n in (1, 3, 4):
        compare(torch.var, torch.arange(2.0 * n).reshape(2, n) ** 2, 1, correction=correction)


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_pooling(ceil_mode: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 7, 8)
    x[0, 0, :4, :4] = float("-inf")
    x[1, 1, 2, 2:5] = float("nan")
    maximum, average = torch.nn.functional.max_pool2d, torch.nn.functional.avg_pool2d
    for kernel, stride, padding in ((3, 2, 1), ((2, 3), None, (1, 0)), (2, 3, 0)):
        compare(maximum, x, kernel, stride, padding, ceil_mode=ceil_mode, return_indices=True)
        for include in (False, True):
            compare(average, x, kernel, stride, padding, ceil_mode, include)
    compare(maximum, x[0], 3, 1, 1, 2, ceil_mode, True)
    compare(average, x, 2, divisor_override=3)


@pytest.mark.parametrize("size", [1, 3, 7, 9])
def test_pooling_of_as_many_windows(size: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 7, 8)
    x[1, 1, 2, 2:5] = float("nan")
    compare(torch.nn.functional.adaptive_max_pool2d, x, (size, 5), True)
    compare(torch.nn.functional.adaptive_max_pool3d, x, (2, size, 5), True)
    compare(torch.nn.functional.adaptive_avg_pool3d, x, (2, size, 5))
    compare(torch.nn.functional.adaptive_avg_pool3d, x.long().double(), (1, 1, size))


FUSED = "erf log1p expm1 exp2 log2 log10 tan sinh cosh asin acos atan asinh acosh atanh trunc sign"
FUSED_OF_TWO = "atan2 fmod remainder floor_divide pow hypot copysign fmax"


def test_compiled() -> None:
    """Functions that have no call of libm, and library functions of NumPy, in compiled loops."""

    def fn(x: Any, y: Any, n: Any) -> list[Any]:
        one = [getattr(torch, name)(x) for name in FUSED.split()] + [torch.round(x, decimals=2)]
        two = [getattr(torch, name)(x, y) for name in FUSED_OF_TWO.split()]
        whole = [n % 3, n // -3, torch.fmod(n, 3), n & 6, n ^ 5, n << 2, torch.div(n, 4, rounding_mode="trunc")]
        wide = [torch.var(x, 0), torch.cummax(y, 1)[0], torch.logcumsumexp(y, 0), torch.argmax(y, 1)]
        return one + two + whole + wide

    torch.manual_seed(0)
    tensors = [torch.randn(9, 37), torch.randn(9, 37), torch.randint(-9, 9, (40,))]
    tensors[0].view(-1)[: len(FLOATS)] = torch.tensor(FLOATS)
    with opinfo.tracing():
        imported = import_graph(opinfo.graph_of(fn, tensors), only_native=True)
    run = CompiledGraph(imported, compile(imported.module, without=("superoptimize",), cache=False))
    for found, wanted in zip(run(tensors), fn(*tensors), strict=True):
        torch.testing.assert_close(found, wanted, equal_nan=True)
