"""Samples of OpInfo, torch's own table of operators, through import_graph and the graph IR's reference interpreter.

`python -m tests.frontends.aten.opinfo --help` looks at some of them, or at all.
"""

from __future__ import annotations

import argparse
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.exported_program import _override_composite_implicit_decomp
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import SEED, set_rng_seed
from torch.testing._internal.opinfo.core import DecorateInfo, OpInfo, SampleInput
from torch.utils import _pytree as pytree

from mirage.errors import UnsupportedNode
from mirage.frontends.aten import fallback
from mirage.frontends.aten.decompose import WHOLE, decompositions
from mirage.frontends.aten.importer import import_graph
from mirage.frontends.imported import Imported
from mirage.ir.graph.interpret import run_module

DTYPES = (torch.float32, torch.int64, torch.bool)
#: what has no defined elements: only types and shapes are compared
UNDEFINED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    }
)


@dataclass(frozen=True)
class Sample:
    """One call of an operator: `call(*tensors)` gives the list of its outputs."""

    op: OpInfo
    dtype: torch.dtype
    number: int
    call: Callable[..., list[Any]]
    tensors: list[torch.Tensor]
    #: equal for samples that differ in the elements of their tensors alone
    key: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{name_of(self.op)} {str(self.dtype)[6:]} {self.number}"


@dataclass
class Counts:
    """Outcomes of samples.

    native              right, without any call of ATen's
    with calls of ATen  right
    refused             import_graph raises UnsupportedNode
    wrong               anything else, but
    random              the graph has random numbers: it is imported, and not compared
    untraced            torch makes no graph of it, or one whose outputs are Python's numbers
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    #: overloads that fell back, and why -> samples that have it
    fallbacks: Counter[str] = field(default_factory=Counter)
    #: samples that are neither right nor random, and why
    problems: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        return [p for p in self.problems if ": wrong: " in p]

    @property
    def share(self) -> float:
        """The share of native samples among those that can be compared."""
        compared = sum(n for outcome, n in self.outcomes.items() if outcome not in ("random", "untraced"))
        return self.outcomes["native"] / compared

    def __str__(self) -> str:
        total = sum(self.outcomes.values())
        parts = ", ".join(f"{n:,} {outcome}" for outcome, n in sorted(self.outcomes.items()))
        return f"{total:,} samples: {parts}; {self.share:.1%} native"


def entries() -> list[OpInfo]:
    """The entries of OpInfo, in torch's order."""
    return list(op_db)


def name_of(op: OpInfo) -> str:
    """An entry's name, with its variant: some names have several entries."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def samples(op: OpInfo, dtype: torch.dtype) -> Iterator[Sample]:
    """The samples of an entry, equal in every run; none where it does not take the type."""
    if dtype not in op.supported_dtypes("cpu"):
        return
    torch.manual_seed(zlib.crc32(f"{name_of(op)} {dtype}".encode()))
    # op.sample_inputs looks for a TestCase on the stack first, with the source of every frame: most of the time of a test
    made = iter(op.sample_inputs_func(op, "cpu", dtype, False))
    for number in count():
        # as torch's own tests seed each sample
        set_rng_seed(SEED)
        if (s := next(made, None)) is None:
            return
        yield _sample(op, dtype, number, s)


def _sample(op: OpInfo, dtype: torch.dtype, number: int, s: SampleInput) -> Sample:
    call, tensors = function_of(op, (s.input, *s.args), s.kwargs)
    flat, spec = pytree.tree_flatten((s.input, s.args, s.kwargs))
    key = (spec, *((tuple(x.shape), x.dtype, _strides(x)) if isinstance(x, torch.Tensor) else repr(x) for x in flat))
    return Sample(op, dtype, number, call, tensors, key)


def function_of(
    op: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Callable[..., list[Any]], list[torch.Tensor]]:
    """A call as a function from its tensors to the list of its outputs, and these tensors."""
    flat, spec = pytree.tree_flatten((tuple(args), kwargs))
    places = [k for k, x in enumerate(flat) if isinstance(x, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> list[Any]:
        values = list(flat)
        for k, t in zip(places, tensors, strict=True):
            values[k] = t
        given, named = pytree.tree_unflatten(values, spec)
        with warnings.catch_warnings(action="ignore"):
            # samples are at the edges of what operators take, too
            return pytree.tree_leaves(op(*given, **named))

    return call, [flat[k].detach() for k in places]


def _strides(x: torch.Tensor) -> Any:
    return x.stride() if x.layout == torch.strided else x.layout


@contextmanager
def tracing() -> Iterator[None]:
    """Graphs that are made within have whole what decompose.py says."""
    whole = {}
    for name in WHOLE:
        packet = getattr(torch.ops.aten, name)
        for op in (getattr(packet, overload) for overload in packet.overloads()):
            if torch._C._dispatch_has_kernel_for_dispatch_key(
                op.name(), torch._C.DispatchKey.CompositeImplicitAutograd
            ):
                whole[op] = lambda *args, **kwargs: NotImplemented
    with torch.no_grad(), _override_composite_implicit_decomp(whole), enable_python_dispatcher():
        yield


@cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    return decompositions()


def graph_of(call: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """The ATen graph of a function of tensors, without effects, at their shapes; only within `tracing()`."""
    fn = call
    # what operators are split into may write in place itself
    for _ in range(3):
        mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        given = [mode.from_tensor(t, static_shapes=True) for t in tensors]
        graph = make_fx(fn, decomposition_table=_decompositions())(*given)
        if not any(_overload(n) and n.target._schema.is_mutable for n in graph.graph.nodes):
            break
        fn = torch.func.functionalize(graph, remove="mutations")
    graph.graph.eliminate_dead_code()
    return graph


def interpreted(imported: Imported, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The outputs of an imported graph, whose shapes have no symbols, by the reference interpreter."""
    given = [tensors[k] for k in imported.inputs] + imported.attributes
    found = run_module(
        imported.module,
        [fallback._to_numpy(x) for x in given],
        packed={fallback.NAME: fallback.packed},
        library={fallback.NAME: fallback.library},
    )
    arrays = [fallback.to_torch(np.asarray(x)) if isinstance(x, np.ndarray | np.generic) else x for x in found]
    return [
        arrays[o] if isinstance(o, int) else o.value if o.position is None else tensors[o.position]
        for o in imported.outputs
    ]


def tolerance(op: OpInfo, dtype: torch.dtype) -> dict[str, float]:
    """What torch's own tests allow results of an operator to differ by."""
    allowed = [
        d.d[dtype]
        for info in op.decorators
        for d in (info.decorators if isinstance(info, DecorateInfo) else [info])
        if isinstance(d, toleranceOverride) and dtype in d.d
    ]
    if not allowed:
        return {}
    return {"rtol": max(t.rtol for t in allowed), "atol": max(t.atol for t in allowed)}


def is_random(graph: torch.fx.GraphModule) -> bool:
    """Whether a graph has random numbers in it."""
    return any(_overload(n) and torch.Tag.nondeterministic_seeded in n.target.tags for n in graph.graph.nodes)


def _overload(n: torch.fx.Node) -> bool:
    return isinstance(n.target, torch._ops.OpOverload)


def problem(sample: Sample, found: Sequence[Any], wanted: Sequence[Any]) -> str | None:
    """How the outputs differ from those of eager torch; None where they do not."""
    if len(found) != len(wanted):
        return f"{len(found)} outputs for {len(wanted)}"
    limits = tolerance(sample.op, sample.dtype)
    for a, b in zip(found, wanted, strict=True):
        if isinstance(b, torch.Tensor) and isinstance(a, torch.Tensor):
            if a.dtype != b.dtype or a.shape != b.shape:
                return f"{a.dtype} {tuple(a.shape)} for {b.dtype} {tuple(b.shape)}"
            if sample.op.name in UNDEFINED or (sample.op.name == "topk" and _same_elements(sample, a, b)):
                continue
            try:
                torch.testing.assert_close(a, b, equal_nan=True, **limits)
            except AssertionError as e:
                return " ".join(str(e).split())[:200]
        elif type(a) is not type(b) or a != b:
            return f"{a!r} for {b!r}"
    return None


def _same_elements(sample: Sample, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two results are positions of equal elements: which of several `topk` gives is not defined."""
    x = sample.tensors[0]
    if a.dtype != torch.int64 or not x.ndim or a.numel() == 0:
        return False
    dims = [d for d in range(x.ndim) if a.shape[:d] + a.shape[d + 1 :] == x.shape[:d] + x.shape[d + 1 :]]
    inside = all(bool(((p >= 0) & (p < x.shape[d])).all()) for d in dims for p in (a, b))
    return inside and any(torch.equal(x.gather(d, a), x.gather(d, b)) for d in dims)


def _as_exact(sample: Sample, found: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Whether results are about as near to those in float64 as eager torch's: some samples lose most digits in any order."""
    if sample.dtype != torch.float32 or any(
        a.shape != b.shape or a.dtype != b.dtype for a, b in zip(found, wanted, strict=True)
    ):
        return False
    exact = sample.call(*(t.double() if t.dtype == torch.float32 else t for t in sample.tensors))
    return all(
        bool(torch.isfinite(e).all()) and (a - e).abs().max() <= 4 * (b - e).abs().max()
        for a, b, e in zip(found, wanted, exact, strict=True)
        if not torch.equal(a, b)
    )


def check(chosen: Iterator[Sample], counts: Counts) -> None:
    """Compare samples of one entry with eager torch; only within `tracing()`."""
    made: dict[tuple[Any, ...], tuple[bool, Imported] | str] = {}
    for sample in chosen:
        if sample.key not in made:
            made[sample.key] = _imported(sample)
        graph = made[sample.key]
        if isinstance(graph, str):
            outcome, _, why = graph.partition(": ")
        elif graph[0]:
            outcome, why = "random", ""
        else:
            outcome, why = _compared(sample, graph[1])
            counts.fallbacks.update(f"{f}: {graph[1].reasons[f]}" for f in graph[1].fallback)
        counts.outcomes[outcome] += 1
        if outcome in ("wrong", "refused", "untraced"):
            counts.problems.append(f"{sample}: {outcome}: {' '.join(why.split())[:300]}")


def _imported(sample: Sample) -> tuple[bool, Imported] | str:
    try:
        graph = graph_of(sample.call, sample.tensors)
    except Exception as e:
        return f"untraced: {type(e).__name__} {e}"
    outputs = [n for n in graph.graph.output_node().args[0] if isinstance(n, torch.fx.Node)]
    if not all(isinstance(n.meta["val"], torch.Tensor) for n in outputs):
        return "untraced: an output of the graph is a number that tensors hold"
    try:
        return is_random(graph), import_graph(graph)
    except UnsupportedNode as e:
        return f"refused: {e}"


def _compared(sample: Sample, imported: Imported) -> tuple[str, str]:
    try:
        found = interpreted(imported, [t.clone() for t in sample.tensors])
        # some operators write to their operands
        wanted = sample.call(*sample.tensors)
        why = problem(sample, found, wanted)
        if why is not None and _as_exact(sample, found, wanted):
            why = None
    except Exception as e:
        why = f"{type(e).__name__} {e}"
    if why is not None:
        return "wrong", why + (f" [fallback: {', '.join(imported.fallback)}]" if imported.fallback else " [native]")
    return ("with calls of ATen" if imported.fallback else "native"), ""


def main() -> None:
    """Compare samples, and say which overloads fall back most."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", help="entries of OpInfo; all if none is given")
    parser.add_argument("--dtype", action="append", help="element types; float32, int64 and bool if not given")
    parser.add_argument("--first", type=int, help="only so many samples of each entry and type")
    parser.add_argument("--every", type=int, default=1, help="only every so many")
    options = parser.parse_args()
    counts = Counts()
    with tracing():
        for op in op_db:
            if not options.names or op.name in options.names:
                for dtype in [getattr(torch, d) for d in options.dtype or ()] or DTYPES:
                    check(islice(samples(op, dtype), 0, options.first, options.every), counts)
    print(*counts.problems, sep="\n")
    for name, n in counts.fallbacks.most_common():
        print(f"{n:8,} {name}")
    print(counts)


if __name__ == "__main__":
    main()
