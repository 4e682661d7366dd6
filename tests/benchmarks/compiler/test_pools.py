"""Models of memory pools: what they hold, and what a static plan saves against them."""

from __future__ import annotations

import random

import pytest

from benchmarks.compiler.pools import CachingPool, Pool, SizeClassPool, replay, reserved_after
from mirage.compiler.memory.buffers import Buffer
from mirage.compiler.memory.plan import plan
from mirage.ir.dims import evaluate, to_dim
from tests.compiler.memory.sizes import Signs

MIB = 1 << 20


def test_size_classes_are_reused_by_the_page() -> None:
    pool = SizeClassPool()
    a = pool.allocate(5000)
    assert pool.reserved == 8192
    pool.free(a)
    b = pool.allocate(8000)
    assert pool.reserved == 8192
    pool.allocate(8000)
    assert pool.reserved == 2 * 8192
    pool.free(b)
    # never of another size
    pool.allocate(100)
    assert pool.reserved == 2 * 8192 + 4096


def test_small_requests_share_segments_of_two_mib() -> None:
    pool = CachingPool()
    handles = [pool.allocate(MIB) for _ in range(2)]
    assert pool.reserved == 2 * MIB
    handles.append(pool.allocate(1))
    assert pool.reserved == 4 * MIB
    for h in handles:
        pool.free(h)
    # merged again: both segments are whole
    for _ in range(4):
        pool.allocate(MIB)
    assert pool.reserved == 4 * MIB


def test_large_requests_take_the_best_fit_and_leave_small_rests_alone() -> None:
    pool = CachingPool()
    pool.allocate(3 * MIB)
    assert pool.reserved == 20 * MIB
    pool.allocate(11 * MIB)
    assert pool.reserved == 20 * MIB
    pool.allocate(11 * MIB)
    # 11 MiB of their own, rounded up
    assert pool.reserved == 32 * MIB
    # a rest of exactly 1 MiB is not split off, so nothing else fits there
    pool.allocate(5 * MIB)
    pool.allocate(MIB + 512)
    assert pool.reserved == 52 * MIB


def test_exact_segments() -> None:
    pool = CachingPool(exact=True)
    a = pool.allocate(3 * MIB)
    pool.free(a)
    pool.allocate(4 * MIB)
    assert pool.reserved == 7 * MIB
    b = pool.allocate(MIB + 1)
    assert pool.reserved == 7 * MIB
    pool.free(b)
    assert pool.allocate(100) and pool.reserved == 7 * MIB + 512


@pytest.mark.parametrize("make", [SizeClassPool, CachingPool, lambda: CachingPool(exact=True)])
def test_no_pool_holds_less_than_what_is_in_use_and_none_grows_on_a_repeated_call(make: type[Pool]) -> None:
    rng = random.Random(3)
    pool, used = make(), 0
    held: dict[int, tuple[int, int]] = {}
    for k in range(3000):
        if held and rng.random() < 0.5:
            name = rng.choice(sorted(held))
            handle, size = held.pop(name)
            pool.free(handle)
            used -= size
        else:
            size = int(2 ** rng.uniform(0, 24))
            held[k] = pool.allocate(size), size
            used += size
        assert pool.reserved >= used
    buffers = [Buffer(f"b{k}", to_dim(1), k, k + rng.randint(0, 5)) for k in range(40)]
    sizes = {b.id: int(2 ** rng.uniform(8, 22)) for b in buffers}
    fresh = make()
    replay(fresh, buffers, sizes)
    once = fresh.reserved
    replay(fresh, buffers, sizes)
    assert fresh.reserved == once


def attention_layer() -> list[Buffer]:
    """Activations of a decoder layer (hidden size 512, 8 heads, float32) at length n, as an interpreter allocates them."""
    hidden, scores, mlp = "2048*n", "32*n**2", "5632*n"
    made = {
        "norm": (hidden, 1, 4),
        "q": (hidden, 2, 5),
        "k": (hidden, 3, 5),
        "v": (hidden, 4, 7),
        "scores": (scores, 5, 6),
        "weights": (scores, 6, 7),
        "heads": (hidden, 7, 8),
        "out": (hidden, 8, 9),
        "sum": (hidden, 9, 15),
        "norm2": (hidden, 10, 12),
        "gate": (mlp, 11, 13),
        "up": (mlp, 12, 13),
        "act": (mlp, 13, 14),
        "down": (hidden, 14, 15),
    }
    return [Buffer(name, to_dim(size), first, last) for name, (size, first, last) in made.items()]


@pytest.mark.parametrize("make", [SizeClassPool, CachingPool, lambda: CachingPool(exact=True)])
@pytest.mark.parametrize(("without", "saved"), [({"scores", "weights"}, 0.5), (set(), 0.25)])
def test_a_plan_for_the_longest_prompt_saves_memory_over_successive_lengths(
    make: type[Pool], without: set[str], saved: float
) -> None:
    """With attention in one kernel, and with its scores as tensors: then two of these are most of what any plan needs."""
    layer = [b for b in attention_layer() if b.id not in without]
    calls = [{b.id: evaluate(b.bytes, {"n": n}) for b in layer} for n in (128, 256, 512, 1024)]
    assert plan(layer, Signs({"n": 1024})).arena <= (1 - saved) * reserved_after(make(), calls, layer)
