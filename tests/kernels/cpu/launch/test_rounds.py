"""The tensors of launches, taken from arrays."""

from __future__ import annotations

import ctypes
import pickle
from typing import Any

import numpy as np
import pytest

from mirage.kernels.cpu.launch import rounds


@pytest.mark.parametrize("in_c", [True, False])
def test_tensors_are_taken_where_they_are_alike(in_c: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_c:
        monkeypatch.setattr(rounds, "ARRAYS_KNOWN", False)
    like: list[np.ndarray] = [np.zeros((2, 3), np.float32), np.zeros((), np.int64), np.zeros((0, 2))]
    addresses = (ctypes.c_void_p * 5)()
    tensors = rounds.Tensors(like, [4, 0, 2], addresses)
    other: list[np.ndarray] = [np.ones((2, 3), np.float32), np.array(5), np.ones((0, 2))]
    assert tensors.take(other)
    assert [addresses[k] for k in (4, 0, 2)] == [a.__array_interface__["data"][0] for a in other]
    # an equal type that is another object
    pickled = pickle.loads(pickle.dumps(np.dtype(np.float32)))
    assert tensors.take([other[0].view(pickled), *other[1:]])
    wrong: list[Any] = [
        np.ones((3, 2), np.float32), np.ones((2, 3)), np.ones((2, 3, 1), np.float32), np.ones((3, 2), np.float32).T,
        np.ones((2, 3), np.float32).view(np.matrix), None, (2, 3),
        np.frombuffer(bytes(25), np.uint8)[1:].view(np.float32).reshape(2, 3),
    ]  # fmt: skip
    for a in wrong:
        assert not tensors.take([a, *other[1:]])
    assert not tensors.take([other[0], np.array([5]), other[2]])
    assert rounds.Tensors([], [], addresses).take([])
