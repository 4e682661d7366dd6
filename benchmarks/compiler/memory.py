"""Memory of intermediate tensors over calls of successive sizes: plans against run-time pools (Relax, Table 2, as the model)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import mirage as mi
from benchmarks.compiler.calls import allocations
from benchmarks.compiler.pools import CachingPool, Pool, SizeClassPool, reserved_after
from benchmarks.graphs.programs import MEASURED, GraphProgram
from benchmarks.tables import Table
from mirage.cache import ResultStore
from mirage.compiler.constraints import from_bounds
from mirage.compiler.kernels.mugraph import MuGraphKernel
from mirage.compiler.memory.buffers import round_up
from mirage.compiler.memory.static import most_live
from mirage.compiler.memory.symbolic import plan_symbolic
from mirage.ir.dims import evaluate
from mirage.runtime import program as vm
from mirage.runtime.executable import Executable

Sizes = Mapping[str, int]
#: successive calls: of prompts, and of batches of sequences that are decoded
_LENGTHS = tuple({"b": 1, "s": s} for s in (128, 256, 512, 1024))
SERIES: Mapping[str, Sequence[Sizes]] = {
    "llama_prefill": _LENGTHS,
    "bert_encoder": _LENGTHS,
    "llama_decode": tuple({"b": b, "s": 1, "t": 512} for b in (1, 16, 32, 64)),
}
#: versions whose memory is measured, and what they leave out
VERSIONS: Mapping[str, tuple[str, ...]] = {"fused only": ("superoptimize",), "full": ()}


@dataclass(frozen=True)
class MemoryRow:
    """Bytes that a program holds for intermediate tensors after calls of successive sizes, arguments and results excluded.

    The pools serve the same kernels tensor by tensor, in their order, each freed as soon as it is dead:
    `size_class` is TVM's pool, `caching` PyTorch's caching allocator, `exact` the same without its reserve (segments of 2
    and 20 MiB). `symbolic` is the plan without bounds, `static` the arena of the program as it is compiled, for the largest
    sizes, with what its plan leaves to an allocator: `unplanned` bytes in the `exact` pool. `live` is the least of any
    allocation at the largest sizes. `saved` is what `static` saves of `caching`, `saved_exact` of `exact`. `library_calls`
    are kernels that run NumPy calls, whose temporary arrays none of these figures has.
    """

    program: str
    version: str
    sizes: tuple[str, ...]
    tensors: int
    size_class: int
    caching: int
    exact: int
    symbolic: int
    static: int
    unplanned: int
    live: int
    saved: float
    saved_exact: float
    library_calls: int


def measure(
    names: Collection[str], budget: float, store: ResultStore, say: Callable[[str], None] = lambda _: None
) -> Iterator[MemoryRow]:
    """A row per program of these, of which there are `SERIES`, and version."""
    for name, calls in SERIES.items():
        if name in names:
            for version, without in VERSIONS.items():
                say(f"{name}, {version}: memory")
                yield row(MEASURED[name], version, without, calls, budget, store)


def row(
    program: GraphProgram,
    version: str,
    without: Sequence[str],
    calls: Sequence[Sizes],
    budget: float,
    store: ResultStore,
) -> MemoryRow:
    """The row of a program that leaves the optimizations `without` out, after these calls."""
    executable = mi.compile(
        program.trace(),
        bounds={symbol: max(sizes[symbol] for sizes in calls) for symbol in program.ranges},
        sizes=list(calls),
        constants=program.constants,
        budget=budget,
        without=without,
        cache=store,
    )
    main = executable.program.functions[executable.program.main]
    buffers, left = allocations(main), allocations(main, left_out=True)
    traces = [{b.id: evaluate(b.bytes, sizes) for b in buffers} for sizes in calls]
    pools: dict[str, Pool] = {"size": SizeClassPool(), "caching": CachingPool(), "exact": CachingPool(exact=True)}
    held = {name: reserved_after(pool, traces, buffers) for name, pool in pools.items()}
    unplanned = reserved_after(CachingPool(exact=True), traces, left)
    static = main.arena + unplanned
    # without bounds, storages grow to the largest sizes of any call
    storages, _ = plan_symbolic(buffers, from_bounds({}))
    symbolic = sum(max(round_up(evaluate(d, sizes)) for sizes in calls) for d in storages)
    live = max(most_live(buffers, trace) for trace in traces)
    return MemoryRow(
        program.name, version, tuple(labels(calls)), len(buffers), held["size"], held["caching"], held["exact"], symbolic, static,
        unplanned, live, 1 - static / held["caching"], 1 - static / held["exact"], library_calls(executable, calls[-1]),
    )  # fmt: skip


def library_calls(executable: Executable, sizes: Sizes) -> int:
    """How many kernels of the main function run as NumPy calls at these sizes."""
    found = 0
    for i in executable.program.functions[executable.program.main].code:
        if isinstance(i, vm.CallKernel):
            kernel = executable.kernels[executable.program.kernels[i.kernel]]
            if isinstance(kernel, MuGraphKernel):
                own = {s: evaluate(d, sizes) for s, d in zip(kernel.symbols, i.dims, strict=True)}
                found += kernel.version(own).executable is None
    return found


def labels(calls: Sequence[Sizes]) -> Iterator[str]:
    """The sizes of each call that differ between calls."""
    varying = [s for s in calls[0] if len({sizes[s] for sizes in calls}) > 1]
    for sizes in calls:
        yield ", ".join(f"{s}={sizes[s]}" for s in varying)


def memory_table(rows: Sequence[MemoryRow]) -> Table:
    header = [
        "program", "version", "successive sizes", "tensors", "size classes, MiB", "caching pool", "without reserve",
        "symbolic plan", "static plan", "live", "static saves of size classes", "of the caching pool", "without reserve",
    ]  # fmt: skip
    return Table(header, [_cells(r) for r in rows])


def _cells(r: MemoryRow) -> list[str]:
    held = (r.size_class, r.caching, r.exact, r.symbolic, r.static, r.live)
    saved = (1 - r.static / r.size_class, r.saved, r.saved_exact)
    version = r.version + f" ({r.library_calls} by NumPy)" * bool(r.library_calls)
    return [
        r.program, version, "; ".join(r.sizes), str(r.tensors), *(f"{n / 2**20:,.1f}" for n in held),
        *(f"{share:.0%}" for share in saved),
    ]  # fmt: skip
