"""Arrays of any library in, results of the same kind out, without copying."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mirage.errors import InputError
from mirage.ir.types import DTYPES
from mirage.runtime.arrays import detached, like, to_numpy

BFLOAT16 = DTYPES["bfloat16"]
X = np.arange(12, dtype=np.float32).reshape(3, 4)


class Exported:
    """An array of a library with DLPack, and with a namespace where it is given."""

    def __init__(self, a: np.ndarray, namespace: Any = None) -> None:
        self.kept = a
        if namespace is not None:
            self.__array_namespace__ = lambda: namespace

    def __dlpack__(self, **options: Any) -> Any:
        return self.kept.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.kept.__dlpack_device__()


def test_views_share_memory() -> None:
    described = SimpleNamespace(__array_interface__=X.__array_interface__)
    for x in (X, X.T, X[::-1], Exported(X), described):
        assert np.shares_memory(to_numpy(x, "x"), X)
    assert type(to_numpy(X.view(np.recarray), "x")) is np.ndarray


def test_what_is_no_array_is_named() -> None:
    for x in (None, 3, [1.0], "x", object()):
        with pytest.raises(InputError, match=f"f: input 'x': {type(x).__name__} is not an array"):
            to_numpy(x, "f: input 'x'")
    with pytest.raises(InputError, match="masked"):
        to_numpy(np.ma.masked_array(X), "x")


def test_results_are_of_the_kind_of_the_argument() -> None:
    assert like(X, X) is X
    assert like(X, Exported(X)) is X
    namespace = SimpleNamespace(from_dlpack=lambda a: ("theirs", a))
    kind, a = like(X, Exported(X, namespace))
    assert kind == "theirs"
    assert a is X


def test_negative_strides_are_not_handed_to_other_libraries() -> None:
    seen: list[np.ndarray] = []
    namespace = SimpleNamespace(from_dlpack=lambda a: seen.append(a))
    like(X[:, ::-1], Exported(X, namespace))
    assert min(seen[0].strides) > 0
    np.testing.assert_array_equal(seen[0], X[:, ::-1])


def test_torch_results_share_memory() -> None:
    torch = pytest.importorskip("torch")
    found = like(X.copy(), torch.ones(1))
    assert isinstance(found, torch.Tensor)
    assert like(r := X.copy(), torch.ones(1)).data_ptr() == r.__array_interface__["data"][0]
    assert like(X[::-1], torch.ones(1)).tolist() == X[::-1].tolist()


def test_bfloat16_of_torch_shares_memory() -> None:
    torch = pytest.importorskip("torch")
    t = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    for view in (t, t.T, t[:, ::2], t[1:, 1], t.clone().requires_grad_()[0]):
        a = to_numpy(view, "x")
        assert a.dtype == BFLOAT16 and a.tolist() == view.tolist()
        assert a.__array_interface__["data"][0] == view.data_ptr()
    found = like(a := X.astype(BFLOAT16), t)
    assert found.dtype == torch.bfloat16 and found.tolist() == X.tolist()
    assert found.data_ptr() == a.__array_interface__["data"][0]
    assert like(a[::-1], t).tolist() == X[::-1].tolist()
    assert like(a.T, t).tolist() == X.T.tolist()
    assert like(X.astype(np.float16), t).dtype == torch.float16


def test_detached() -> None:
    own = X.copy()
    assert detached([own], [X])[0] is own
    found = detached([X, X, X.T, X[1:]], [X])
    for i, r in enumerate(found):
        assert not any(np.shares_memory(r, other) for other in (X, *found[:i]))
    np.testing.assert_array_equal(found[2], X.T)
    first, second = detached([own, own.T], [])
    assert first is own
    assert not np.shares_memory(first, second)
