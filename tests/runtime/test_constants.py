"""What is prepared from constant arguments is kept, until `forget`."""

from __future__ import annotations

import numpy as np

import mirage as mi


def test_forget_after_a_write_to_a_constant_argument() -> None:
    spec = {"x": mi.tensor("n", 4), "w": mi.tensor(4, 4)}
    run = mi.compile(lambda x, w: x @ mi.exp(w), spec, constants=["w"], without=["superoptimize"], cache=False)
    x, w = np.ones((2, 4), np.float32), np.zeros((4, 4), np.float32)
    assert np.array_equal(run(x, w), np.full((2, 4), 4))
    w[:] = np.log(2)
    run.forget()
    assert np.allclose(run(x, w), 8)
    # another array is another constant
    assert np.array_equal(run(x, np.zeros((4, 4), np.float32)), np.full((2, 4), 4))
