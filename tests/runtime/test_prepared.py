"""Values that are computed once per set of constant arrays."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

from mirage.runtime.prepared import Prepared
from tests.kernels.kernels import in_threads


class Doubled:
    """Doubles an array, and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, x: Any) -> tuple[Any, ...]:
        self.count += 1
        return (np.asarray(x) * 2,)


def test_equal_arrays_are_prepared_once_each() -> None:
    doubled = Doubled()
    prepared = Prepared(doubled)
    a, b = np.ones(3), np.ones(3)
    assert prepared.get([a])[0] is prepared.get([a])[0]
    prepared.get([b])
    assert doubled.count == 2


def test_what_was_made_of_an_array_goes_with_it() -> None:
    prepared = Prepared(Doubled())
    a = np.ones(3)
    prepared.get([a])
    assert len(prepared._values) == 1
    del a
    gc.collect()
    assert not prepared._values


def test_forgetting_makes_values_anew() -> None:
    doubled = Doubled()
    prepared = Prepared(doubled)
    a = np.ones(3)
    prepared.get([a])
    a[:] = 5
    prepared.forget()
    assert prepared.get([a])[0][0] == 10 and doubled.count == 2


def test_few_sets_are_kept() -> None:
    doubled = Doubled()
    prepared = Prepared(doubled)
    arrays = [np.full(2, k) for k in range(9)]
    for a in arrays:
        prepared.get([a])
    assert len(prepared._values) <= 4
    assert prepared.get([arrays[0]])[0][0] == 0 and doubled.count == 10


def test_objects_without_weak_references_are_prepared_for_each_call() -> None:
    doubled = Doubled()
    prepared = Prepared(doubled)
    value = [1.0, 2.0]
    prepared.get([value])
    prepared.get([value])
    assert doubled.count == 2


def test_several_threads_get_the_same_values() -> None:
    prepared = Prepared(Doubled())
    arrays = [np.full(100, k) for k in range(6)]

    def work(seed: int) -> None:
        for k in range(seed, seed + 60):
            assert (prepared.get([arrays[k % 6]])[0] == 2 * (k % 6)).all()

    in_threads(work)
