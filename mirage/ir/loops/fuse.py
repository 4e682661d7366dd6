"""Fusion of loop programs: producers are substituted into their consumers (Relax, section 4.2; BladeDISC, 4.1 and 4.2).

Elementwise, broadcast and injective stages are computed where they are read (*input-inline*), unless that would repeat
costly work; reductions, and what is left, become stages of one program, which `nests` then stitches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage.errors import LoopError
from mirage.ir.dims import Dim
from mirage.ir.functions import FUNCTIONS
from mirage.ir.loops.analysis import one_to_one
from mirage.ir.loops.nests import nests
from mirage.ir.loops.program import LoopProgram, TensorExpr, extra_dims, fresh
from mirage.ir.loops.regroup import regrouped
from mirage.ir.loops.scalars import Apply, Checked, Read, Scalar
from mirage.ir.loops.simplify import simplify_stage
from mirage.ir.loops.split import with_split_reductions
from mirage.ir.loops.traverse import reads_of, substitute, transform, walk
from mirage.ir.types import TensorType

#: work of a stage, in reads, up to which it is repeated rather than kept
_CHEAP = 4
#: work of a function of so many operations and more, and of an index to check
_COSTLY_FLOPS, _COSTLY, _CHECK = 8, 16, 4

Equal = Callable[[Dim, Dim], bool]


@dataclass(frozen=True)
class Call:
    """A program applied to named values: `results = program(args)`."""

    program: LoopProgram
    args: tuple[str, ...]
    results: tuple[str, ...]


def identical(a: Dim, b: Dim) -> bool:
    """The equality of dims where nothing is known but their expressions."""
    return bool(a == b)


def fuse(name: str, calls: Sequence[Call], outputs: Sequence[str], equal: Equal = identical) -> LoopProgram:
    """One program that computes the values `outputs` of these calls, which are in order of dependence.

    All programs are over the same dim symbols. Its inputs are the arguments that no call computes, by their names, in the
    order in which they are first used. Dims that are `equal` become one. Raises LoopError for values that no call
    computes, and for arguments of another type than a program's input.
    """
    inputs: dict[str, TensorType] = {}
    stages: dict[str, TensorExpr] = {}
    taken = {s for c in calls for s in c.program.symbols}
    taken |= {loop for c in calls for _, s in c.program.stages for loop in s.extents}
    # a value keeps its name, unless that is the name of a dim or loop
    names = {v: fresh(v, taken) for v in dict.fromkeys(v for c in calls for v in (*c.args, *c.results))}
    for c in calls:
        if len(c.args) != len(c.program.inputs) or len(c.results) != len(c.program.outputs):
            raise LoopError(f"{c.program.name}: {len(c.args)} arguments and {len(c.results)} results do not fit it")
        own = dict(zip((n for n, _ in c.program.inputs), (names[a] for a in c.args), strict=True))
        for a, (_, type) in zip(c.args, c.program.inputs, strict=True):
            known = stages[names[a]].type if names[a] in stages else inputs.setdefault(names[a], type)
            if known.dtype != type.dtype or known.rank != type.rank or not all(map(equal, known.shape, type.shape)):
                raise LoopError(f"{c.program.name}: argument {a} is {known}, not {type}")
        results = dict(zip(c.program.outputs, (names[r] for r in c.results), strict=True))
        for stage, e in c.program.stages:
            own[stage] = results[stage] if stage in results else fresh(f"{names[c.results[0]]}_{stage}", taken)
            stages[own[stage]] = replace(e, body=_renamed(e.body, own))
    if missing := [o for o in outputs if o not in names or names[o] not in stages]:
        raise LoopError(f"{name}: no call computes {', '.join(missing)}")
    wanted = [names[o] for o in outputs]
    inputs, stages = _one_form(inputs, stages, equal)
    stages = _inlined(stages, wanted)
    used = {r.tensor for s in stages.values() for r in reads_of(s.body)}
    types = {n: t for n, t in inputs.items() if n in used}
    needs = tuple(dict.fromkeys(n for c in calls for n in c.program.needs))
    extra = extra_dims(list(types.values()), list(stages.values()), needs)
    return LoopProgram(name, tuple(types.items()), extra, tuple(stages.items()), tuple(wanted), needs)


def can_stitch(calls: Sequence[Call], outputs: Sequence[str], equal: Equal = identical) -> bool:
    """Whether the fused program runs in one loop nest, each intermediate value staying in a buffer of its tile dims."""
    return len(nests(regrouped(fuse("stitched", calls, outputs, equal)))) == 1


def _renamed(body: Scalar, names: Mapping[str, str]) -> Scalar:
    return transform(body, lambda n: Read(names[n.tensor], n.index, n.type) if isinstance(n, Read) else None)


def _one_form(
    inputs: Mapping[str, TensorType], stages: Mapping[str, TensorExpr], equal: Equal
) -> tuple[dict[str, TensorType], dict[str, TensorExpr]]:
    """The same with equal dims written in one way."""
    forms: dict[Dim, Dim] = {}
    for d in [d for t in inputs.values() for d in t.shape] + [d for s in stages.values() for d in s.extents.values()]:
        if d not in forms:
            forms[d] = next((f for f in dict.fromkeys(forms.values()) if equal(d, f)), d)

    def shape(dims: Sequence[Dim]) -> tuple[Dim, ...]:
        return tuple(forms[d] for d in dims)

    types = {n: TensorType(shape(t.shape), t.dtype) for n, t in inputs.items()}
    return types, {
        n: replace(s, shape=shape(s.shape), reduce=tuple((r, forms[d]) for r, d in s.reduce)) for n, s in stages.items()
    }


def _inlined(stages: Mapping[str, TensorExpr], outputs: Sequence[str]) -> dict[str, TensorExpr]:
    """The stages that are left when those that may be are computed where they are read, and unused ones are dropped."""
    left = dict(stages)
    for name in stages:
        producer = left[name]
        reads = [(c, r) for c, s in left.items() for r in reads_of(s.body) if r.tensor == name]
        if not reads and name not in outputs:
            del left[name]
        elif name not in outputs and _may_inline(producer, [(left[c], r) for c, r in reads]):
            del left[name]
            for c in dict.fromkeys(c for c, _ in reads):
                left[c] = replace(left[c], body=_with_producer(left[c].body, name, producer))
    # a stage may be unused only after its consumers are gone
    used = {r.tensor for s in left.values() for r in reads_of(s.body)} | set(outputs)
    if len(used & left.keys()) < len(left):
        return _inlined({n: s for n, s in left.items() if n in used}, outputs)
    return {n: with_split_reductions(simplify_stage(s)) for n, s in left.items()}


def _with_producer(body: Scalar, name: str, producer: TensorExpr) -> Scalar:
    def change(n: Scalar) -> Scalar | None:
        if isinstance(n, Read) and n.tensor == name:
            return substitute(producer.body, dict(zip(producer.loops, n.index, strict=True)))
        return None

    return transform(body, change)


def _may_inline(producer: TensorExpr, reads: Sequence[tuple[TensorExpr, Read]]) -> bool:
    """Whether to compute a stage where it is read: nothing is repeated, or it is cheap."""
    if producer.reduce:
        return False
    if len(reads) == 1 and one_to_one(reads[0][1].index, reads[0][0].extents):
        return True
    return work(producer.body) <= _CHEAP


def work(body: Scalar) -> int:
    """A measure of an element's work, in reads."""
    total = 0
    for n in walk(body):
        match n:
            case Read():
                total += 1
            case Checked():
                total += _CHECK
            case Apply() if FUNCTIONS[n.function].flops >= _COSTLY_FLOPS:
                total += _COSTLY
    return total
