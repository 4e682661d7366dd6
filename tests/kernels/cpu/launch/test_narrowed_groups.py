"""Products of groups of rows with weights in 16 and 8 bits, beside the meaning of the operator in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage.errors import InputError, LibraryError
from mirage.ir.operator import get_operator
from mirage.ir.types import ELEMENTS, HALVES, epsilon
from mirage.kernels.cpu.launch import narrowed
from mirage.kernels.cpu.launch.narrowed import pack
from mirage.kernels.cpu.launch.narrowed_groups import library, prepare
from tests.kernels.cpu.launch.test_grouped import GROUPS
from tests.kernels.cpu.launch.test_narrowed import launched, real

#: element types of rows, how weights are stored, and terms that have one scale
KINDS = [("float32", "bfloat16", 0), ("float32", "int8", 0), ("float32", "int8", 32)]
KINDS += [(half, half, 0) for half in HALVES] + [(half, "int8", 0) for half in HALVES]
K, N = 64, 50


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("rows", "ends"), [(m, e) for m, e in GROUPS if e])
def test_groups_of_any_rows(rows: int, ends: list[int], kind: tuple[str, str, int]) -> None:
    name, stored, group = kind
    rng, dtype = np.random.default_rng([rows, *ends]), ELEMENTS[name]
    x, w = rng.standard_normal((rows, K)).astype(dtype), rng.standard_normal((len(ends), K, N)).astype(dtype)
    if stored == "int8":
        exact = np.stack([real(a.astype(np.float32), group)[0] for a in w])
    else:
        exact = w.astype(ELEMENTS[stored]).astype(np.float64)
    last = np.array(ends, np.int64)
    wanted: Any = get_operator("grouped_matmul").run([x.astype(np.float64), exact, last], {}, {})
    tolerance: dict[str, Any] = {"rtol": max(epsilon(dtype), 1e-5), "atol": 1e-4}
    for right in ((), (0, 1, 2), (0, 2, 1)):
        given = np.ascontiguousarray(w.transpose(right)) if right else w
        attrs: dict[str, Any] = {"right": right, "group": group, "dtype": stored}
        form = pack(given, **attrs)
        for size in (np.int32, np.int64):
            end, out = last.astype(size), np.ones((rows, N), dtype)
            library([x, given, end], [out], **attrs)
            np.testing.assert_allclose(out.astype(np.float64), wanted, **tolerance)
            out[...] = 1
            library([x, given, form, end], [out], packed=True, **attrs)
            np.testing.assert_allclose(out.astype(np.float64), wanted, **tolerance)
            launch = prepare([x, given, form, end], [out], packed=True, **attrs)
            if rows:
                out[...] = 1
                launched(launch, [x, given, x, end, out])
                np.testing.assert_allclose(out.astype(np.float64), wanted, **tolerance)
            else:
                assert launch is None


def test_wrong_ends_are_an_error_and_nothing_is_written() -> None:
    x, w, out = np.ones((5, K), np.float32), np.ones((2, K, N), np.float32), np.full((5, N), 7, np.float32)
    for ends in ([2, 6], [3, 2], [-1, 5]):
        with pytest.raises(InputError, match="ends"):
            library([x, w, np.array(ends)], [out], dtype="bfloat16")
    assert (out == 7).all()


def test_what_does_not_fit_is_an_error() -> None:
    """Programs come from files, too."""
    x, w, ends, out = np.ones((5, K), np.float32), np.ones((2, K, N), np.float32), np.array([2, 5]), np.empty((5, N), np.float32)
    form = pack(w, dtype="bfloat16")
    one, scale = pack(w[0], dtype="bfloat16"), pack(w, group=32)
    wrong: list[tuple[list[Any], str]] = [
        ([x, w, one, ends], "are not packed"), ([x, w, w, ends], "are not packed"),
        ([x, w, pack(w[0], dynamic=True), ends], "are not packed"),
        ([x, w, form, ends[:1].copy()], "there are no groups"), ([x, w, form, ends.astype(np.int16)], "there are no groups"),
        ([x[:, :60].copy(), w, form, ends], "there is no product"), ([x[0], w, form, ends], "there are no groups"),
        ([x, w, scale, ends], "there is no product"), ([x.astype(np.float16), w, form, ends], "there is no product"),
    ]  # fmt: skip
    for call in (library, prepare):
        for inputs, message in wrong:
            with pytest.raises(LibraryError, match=message):
                call(inputs, [out], dtype="bfloat16", packed=True)
        with pytest.raises(LibraryError, match="there is no product"):
            call([x, w, form, ends], [np.empty((4, N), np.float32)], dtype="bfloat16", packed=True)
    with pytest.raises(LibraryError, match="is not packed"):
        narrowed.library([x, w[0], form], [out], dtype="bfloat16", packed=True)
    with pytest.raises(LibraryError, match="are no matrix"):
        pack(w, dynamic=True)
