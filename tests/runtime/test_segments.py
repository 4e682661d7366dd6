"""Straight lines of compiled calls that are launched as one, beside the same instructions one by one."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.compilation import compile as compile_program
from mirage.errors import InputError, MirageError
from mirage.frontends.convolutions import convolution as convolved
from mirage.ir.graph.parse import parse_module
from mirage.kernels.cpu.launch import convolution
from mirage.kernels.cpu.launch.rounds import LaunchedRounds
from mirage.runtime.executable import Executable
from tests.kernels.kernels import in_threads

#: products, a softmax between them, and a view of what a product made; NumPy's running maximum in the middle
PROGRAM = """
def main(x: float32[n, 4], w: float32[4, 6], v: float32[6, 6]):
    with dataflow():
        a = matmul(x, w)
        p = softmax(a, axis=1)
        b = matmul(p, v)
        r = reshape(b, shape=(n * 6,))
        s = cummax(r, axis=0)
        t = reshape(s, shape=(n, 6))
        c = matmul(t, v)
        y = relu(c)
        z = (y, b)
    return z
"""


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of launches of each line that runs in C, as they run."""
    found: list[int] = []
    run = LaunchedRounds.run_first

    def counted(self: LaunchedRounds) -> int | None:
        found.append(len(self._launches[0]))
        return run(self)

    monkeypatch.setattr(LaunchedRounds, "run_first", counted)
    return found


def compiled(text: str, **options: Any) -> Executable:
    found = compile_program(parse_module(text), without=("superoptimize",), cache=False, **options)
    assert isinstance(found, Executable)
    return found


def arguments(n: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng([seed, n])
    return [rng.standard_normal(s).astype(np.float32) for s in ((n, 4), (4, 6), (6, 6))]


def exact(*args: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x, w, v = (a.astype(np.float64) for a in args)
    e = np.exp(x @ w)
    b = e / e.sum(axis=1, keepdims=True) @ v
    return np.maximum(np.maximum.accumulate(b.ravel()).reshape(b.shape) @ v, 0), b


def check(run: Executable, args: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    found: tuple[np.ndarray, np.ndarray] = run(*args)
    for f, w in zip(found, exact(*args), strict=True):
        np.testing.assert_allclose(f, w, rtol=1e-4, atol=1e-5)
    return found


def test_from_the_second_call_with_the_same_sizes_on(launches: list[int]) -> None:
    run = compiled(PROGRAM)
    check(run, arguments(5))
    assert not launches
    for seed in range(4):
        check(run, arguments(5, seed))
    first = launches[: len(launches) // 4]
    assert launches == first * 4 and sum(first) >= 3 and len(first) == 2
    launches.clear()
    # at other sizes, those are run that were prepared for them
    for seed in range(3):
        check(run, arguments(7, seed))
    assert launches == first * 3


#: what `y` goes through has the same shapes at all n; `x` is another
GROWING = """
def main(x: float32[n, 6], y: float32[3, 4], w: float32[4, 6], v: float32[6, 6]):
    with dataflow():
        a = matmul(y, w)
        p = softmax(a, axis=1)
        b = matmul(p, v)
        t = transpose(x, perm=(1, 0))
        s = matmul(b, t)
        q = softmax(s, axis=1)
        o = matmul(q, x)
        c = matmul(o, v)
        z = softmax(c, axis=1)
        d = matmul(z, v)
        e = (d, b)
    return e
"""


def growing(n: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng([seed, n])
    return [rng.standard_normal(s).astype(np.float32) for s in ((n, 6), (3, 4), (4, 6), (6, 6))]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def check_growing(run: Executable, args: list[np.ndarray]) -> list[np.ndarray]:
    x, y, w, v = (a.astype(np.float64) for a in args)
    b = softmax(y @ w) @ v
    wanted = softmax(softmax(b @ x.T) @ x @ v) @ v, b
    found: list[np.ndarray] = list(run(*args))
    for f, g in zip(found, wanted, strict=True):
        np.testing.assert_allclose(f, g, rtol=1e-4, atol=1e-5)
    return found


@pytest.mark.parametrize("constants", [(), ("w", "v")])
def test_what_keeps_its_shapes_is_launched_while_sizes_change(launches: list[int], constants: tuple[str, ...]) -> None:
    run = compiled(GROWING, constants=constants)
    w, v = growing(1, 0)[2:]
    counts: list[int] = []
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    for n in range(2, 40):
        launches.clear()
        kept += [(f, f.copy()) for f in check_growing(run, [*growing(n, n)[:2], w, v])]
        counts.append(sum(launches))
    # not at the first sizes; from the fourth on it is known what changes
    assert counts[0] == 0 and len(set(counts[3:])) == 1 and counts[-1] >= 4
    # all sizes once more, those that were laid out lately and others, and each several times in a row
    for n in (*range(39, 1, -5), 7, 7, 7, 8, 7, 9, 9, 9, 10):
        check_growing(run, [*growing(n, 0)[:2], w, v])
    if constants:
        w *= 2
        run.forget()
        for n in (11, 12, 12, 12, 13):
            check_growing(run, [*growing(n, 0)[:2], w, v])
    # results are not written to by later calls
    for found, then in kept:
        np.testing.assert_array_equal(found, then)


def test_sizes_that_change_in_threads(launches: list[int]) -> None:
    run = compiled(GROWING)

    def work(k: int) -> None:
        for n in range(2, 12):
            check_growing(run, growing(n + k, k))

    in_threads(work, 6)
    assert launches


#: a cache that is written to where `at` says, and the number of its tokens
EFFECTS = """
def main(cache: float32[n, 4], seen: int64[()], x: float32[2, 4], w: float32[4, 4], at: int64[2], now: int64[()]):
    with dataflow():
        a = matmul(x, w)
    c = packed["scatter_", float32[n, 4], in_place[0]](cache, at, a, axis=0)
    s = packed["copy_", int64[()], in_place[0]](seen, now)
    with dataflow():
        b = matmul(a, w)
        t = transpose(c, perm=(1, 0))
        y = matmul(b, t)
    return y
"""


def test_effects_are_launched(launches: list[int]) -> None:
    run = compiled(EFFECTS)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 4), (4, 4)))
    for n in (5, 5, 5, 7, 8, 9, 10, 5):
        launches.clear()
        cache, seen = rng.standard_normal((n, 4)).astype(np.float32), np.array(3)
        wanted = cache.astype(np.float64)
        at = np.array([n - 1, -n])
        wanted[at] = x.astype(np.float64) @ w
        found = run(cache, seen, x, w, at, np.array(n))
        np.testing.assert_allclose(cache, wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found, x.astype(np.float64) @ w @ w @ wanted.T, rtol=1e-4, atol=1e-4)
        assert seen == n
    assert sum(launches) >= 4
    before = cache.copy()
    for _ in range(2):
        # nothing is written where one of the positions is none
        with pytest.raises(InputError, match="scatter_: axis 0: index 5 is outside of a dim of 5 elements"):
            run(cache, seen, x, w, np.array([0, 5]), np.array(1))
        np.testing.assert_array_equal(cache, before)
    with pytest.raises(InputError, match="updated in place, and read-only"):
        cache.flags.writeable = False
        run(cache, seen, x, w, np.array([0, 1]), np.array(1))


def test_nothing_that_keeps_its_shapes(launches: list[int]) -> None:
    run = compiled(PROGRAM)
    for n in range(1, 30):
        launches.clear()
        check(run, arguments(n))
    assert not launches


def test_no_rows(launches: list[int]) -> None:
    run = compiled(PROGRAM)
    for _ in range(3):
        check(run, arguments(0))
    assert not launches


def test_results_are_arrays_of_their_own() -> None:
    run = compiled(PROGRAM)
    kept = [(check(run, arguments(3, seed)), seed) for seed in range(5)]
    for found, seed in kept:
        for f, w in zip(found, exact(*arguments(3, seed)), strict=True):
            np.testing.assert_allclose(f, w, rtol=1e-4, atol=1e-5)


def test_arguments_are_read_where_they_lie_now(launches: list[int]) -> None:
    run = compiled(PROGRAM)
    args = arguments(6)
    for _ in range(3):
        check(run, args)
    args[0] += 1  # the same array
    check(run, args)
    args[1] = args[1] * 2  # another one
    check(run, args)
    # one that is not contiguous, one at an odd address, and one of a subclass
    args[2] = np.asfortranarray(args[2])
    check(run, args)
    bytes_ = np.zeros(6 * 4 * 4 + 1, np.uint8)
    odd = bytes_[1:].view(np.float32).reshape(6, 4)
    odd[...] = args[0]
    check(run, [odd, *args[1:]])

    class Other(np.ndarray):
        pass

    for _ in range(3):
        check(run, [args[0].view(Other), *args[1:]])
    assert launches


def test_arguments_are_not_kept_alive() -> None:
    run = compiled(PROGRAM)
    for _ in range(3):
        args = arguments(4)
        run(*args)
    end = weakref.ref(args[0])
    del args
    gc.collect()
    assert end() is None


def test_constants_that_change(launches: list[int]) -> None:
    run = compiled(PROGRAM, constants=("w", "v"))
    for seed in range(12):
        check(run, arguments(5, seed))
    args = arguments(5)
    for _ in range(3):
        check(run, args)
    args[1] *= 3
    run.forget()
    check(run, args)
    assert launches


def test_threads_have_lines_of_their_own(launches: list[int]) -> None:
    run = compiled(PROGRAM)

    def work(k: int) -> None:
        for seed in range(6):
            check(run, arguments(3 + k % 3, seed))

    in_threads(work, 6)
    assert launches


def test_convolutions_and_their_packed_weights(launches: list[int]) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    d = rng.standard_normal((4, 1, 3, 3)).astype(np.float32)

    def f(x: Any, w: Any, d: Any) -> Any:
        first = mi.relu(convolved(x, w, (1, 1), (0, 0), (0, 0), (1, 1), 1))
        return mi.relu(convolved(first, d, (1, 1), (0, 0), (0, 0), (1, 1), 4))

    specs = {"x": mi.tensor("n", 3, 8, 8), "w": mi.tensor(4, 3, 3, 3), "d": mi.tensor(4, 1, 3, 3)}
    run = mi.compile(f, specs, constants=("w", "d"), without=("superoptimize",), cache=False)
    plain = mi.compile(f, specs, without=("superoptimize", "libraries"), cache=False)
    for k in range(4):
        x = rng.standard_normal((2, 3, 8, 8)).astype(np.float32)
        np.testing.assert_allclose(run(x, w, d), plain(x, w, d), rtol=1e-5, atol=1e-5)
        if k == 2:
            w *= 2
            run.forget()
    assert launches and max(launches) >= 2


def test_an_error_names_its_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    run = compiled(PROGRAM)
    args = arguments(5)
    for _ in range(3):
        check(run, args)

    def failing(self: LaunchedRounds) -> int:
        self._status = -1
        self._args.failed = 0
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(LaunchedRounds, "run_first", failing)
        with pytest.raises(MirageError, match="no memory") as e:
            run(*args)
    assert any("in function 'main'" in note for note in e.value.__notes__)
    check(run, args)


def test_a_convolution_without_packed_weights_or_elements_is_not_prepared() -> None:
    x, w, out = (np.zeros(s, np.float32) for s in ((1, 3, 8, 8), (4, 3, 3, 3), (1, 4, 6, 6)))
    windows: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "low": (0, 0)}
    assert convolution.prepare([x, w], [out], **windows) is None
    packed = convolution.pack(w)
    assert convolution.prepare([x, w, packed], [out], packed=True, **windows) is not None
    assert convolution.prepare([x[:0], w, packed], [out[:0]], packed=True, **windows) is None
