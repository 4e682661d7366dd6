"""Library functions for float32 on tensors of 16 bits: every bit pattern both ways, and what they compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mirage.errors import MirageError
from mirage.ir.types import ELEMENTS, HALVES, epsilon
from mirage.kernels.cpu.launch import convolution, grouped, halves, linear
from mirage.kernels.cpu.launch.rounds import Launch
from tests.kernels.cpu.launch.test_narrowed import launched


@pytest.mark.parametrize("half", HALVES)
def test_every_number_becomes_float32_and_comes_back(half: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    given = bits.view(ELEMENTS[half])
    np.testing.assert_array_equal(halves.widened(given), given.astype(np.float32))
    back = np.empty_like(given)
    halves.in_float32(lambda inputs, outputs: np.copyto(outputs[0], inputs[0]))([given], [back])
    number = ~np.isnan(given.astype(np.float32))
    np.testing.assert_array_equal(back.view(np.uint16)[number], bits[number])
    assert np.isnan(back.astype(np.float32))[~number].all()


def test_other_tensors_are_handed_on_as_they_are() -> None:
    seen: list[np.ndarray] = []

    @halves.in_float32
    def keep(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], **attrs: Any) -> None:
        seen.extend((*inputs, *outputs))

    whole, real, half = np.ones(3, np.int16), np.ones(3, np.float32), np.ones(3, np.float16)
    keep([whole, real], [real], relu=True)
    assert all(a is b for a, b in zip(seen, (whole, real, real), strict=True))
    seen.clear()
    keep([whole, half], [real])
    assert seen[0] is whole and seen[1].dtype == np.float32 and seen[2] is real


RNG = np.random.default_rng(0)
Call = Callable[..., Any]
#: a library function, what prepares it, shapes of its inputs and result, other inputs behind them, and its attributes
CALLS: dict[str, tuple[Call, Callable[..., Launch | None], list[tuple[int, ...]], tuple[int, ...], list[Any], dict[str, Any]]] = {
    "matmul": (linear.matmul, linear.prepare_matmul, [(2, 3, 5, 40), (2, 3, 40, 30)], (2, 3, 5, 30), [], {}),
    "bias": (
        linear.matmul, linear.prepare_matmul, [(70, 40), (30, 40), (30,)], (70, 30), [],
        {"right": (1, 0), "bias": True, "activation": "silu"},
    ),
    "contraction": (
        linear.contraction, linear.prepare_contraction, [(4, 5, 6), (4, 6, 7)], (4, 5, 7), [],
        {"left": (0, 1, 2), "right": (0, 2, 3), "result": (0, 1, 3)},
    ),
    "grouped": (grouped.library, grouped.prepare, [(9, 20), (3, 20, 17)], (9, 17), [np.array([2, 2, 7])], {}),
}  # fmt: skip


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_float32_rounded_once(name: str, half: str) -> None:
    call, prepare, shapes, shape, rest, attrs = CALLS[name]
    dtype = ELEMENTS[half]
    given = [RNG.standard_normal(s).astype(dtype) for s in shapes]
    wide, out = np.empty(shape, np.float32), np.ones(shape, dtype)
    call([*(a.astype(np.float32) for a in given), *rest], [wide], **attrs)
    call([*given, *rest], [out], **attrs)
    wanted = wide.astype(dtype).astype(np.float32)
    np.testing.assert_allclose(out.astype(np.float32), wanted, rtol=epsilon(dtype), atol=1e-6)
    out[...] = 1
    launched(prepare([*given, *rest], [out], **attrs), [*given, *rest, out])
    np.testing.assert_allclose(out.astype(np.float32), wanted, rtol=epsilon(dtype), atol=1e-6)


@pytest.mark.parametrize("half", HALVES)
def test_convolutions(half: str) -> None:
    dtype = ELEMENTS[half]
    x, w, bias = (RNG.standard_normal(s).astype(dtype) for s in ((2, 4, 9, 8), (6, 4, 3, 3), (6,)))
    attrs: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "low": (1, 1), "bias": True, "least": 0.0, "packed": True}
    out, wide = np.ones((2, 6, 9, 8), dtype), np.empty((2, 6, 9, 8), np.float32)
    form = convolution.pack(w)
    real = [a.astype(np.float32) for a in (x, w, bias)]
    convolution.library([real[0], real[1], convolution.pack(real[1]), real[2]], [wide], **attrs)
    assert (wide > 0).any()
    for run in (
        lambda: convolution.library([x, w, form, bias], [out], **attrs),
        lambda: launched(convolution.prepare([x, w, form, bias], [out], **attrs), [x, w, x, bias, out]),
    ):
        out[...] = -1
        run()
        np.testing.assert_allclose(out.astype(np.float32), wide, rtol=epsilon(dtype), atol=1e-6)


def test_launches_fail_as_those_that_they_run() -> None:
    x, w, out = np.ones((5, 4), np.float16), np.ones((2, 4, 3), np.float16), np.full((5, 3), 7, np.float16)
    ends = np.array([2, 6])
    launch = grouped.prepare([x, w, ends], [out])
    assert launch is not None
    assert "ends" in str(launch.error(2))
    assert isinstance(launch.error(-1), MirageError) and "no memory for copies of float16 tensors" in str(launch.error(-1))


def test_types_that_are_mixed_are_not_prepared() -> None:
    x, w = np.ones((5, 4), np.float16), np.ones((4, 3), ELEMENTS["bfloat16"])
    out = np.empty((5, 3), np.float16)
    assert linear.prepare_matmul([x, w], [out]) is None
    linear.matmul([x, w], [out])
    np.testing.assert_array_equal(out, np.full((5, 3), 4, np.float16))


def test_tensors_without_elements() -> None:
    out = np.ones((5, 3), np.float16)
    linear.matmul([np.ones((5, 0), np.float16), np.ones((0, 3), np.float16)], [out])
    np.testing.assert_array_equal(out, np.zeros((5, 3)))
    linear.matmul([np.ones((0, 4), np.float16), np.ones((4, 3), np.float16)], [np.ones((0, 3), np.float16)])
