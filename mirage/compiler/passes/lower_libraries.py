"""Partial library lowering: what registered patterns match becomes calls of library functions (Relax, section 4.6).

A match lies within one dataflow block, so that it crosses no effect; only the match reads what it computes on the way, so
that nothing is computed twice; and its result's shape is known, because the caller provides the memory.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mirage.compiler.context import Context
from mirage.compiler.passes.lift_constants import VIEWS
from mirage.compiler.patterns import Match, Rule, rules
from mirage.ir.annotations import Annotation, TupleType
from mirage.ir.graph.builder import FunctionBuilder
from mirage.ir.graph.nodes import Binding, Block, Expr, Function, LibraryCall, Loop, Module, OpCall, Var
from mirage.ir.graph.traverse import uses, variables
from mirage.ir.types import ELEMENTS, TensorType

#: functions that have their own way to kernels
_OTHERS = ("lax", "fused")
#: package -> library function -> the package's own, which programs from there call: threads of two libraries are in each
#: other's way
OWN: Mapping[str, Mapping[str, str]] = {"torch": {"blas.matmul": "torch.matmul"}}


def run(module: Module, context: Context) -> Module:
    """The module with matches of all registered patterns that need no package, or are left for here, as library calls."""
    own = {name: other for p in context.packages for name, other in OWN.get(p, {}).items()}
    # rounds of a loop are small, and run in C where they have no function of a package
    bodies = {b.value.body for f in module for b in f.bindings if isinstance(b.value, Loop)}
    found = [replace(r, function=own.get(r.function, r.function)) for r in rules()]
    return lowered(module, context, [*rules((*context.packages, context.kernels.target), late=True), *found], bodies)


def lowered(module: Module, context: Context, found: Sequence[Rule], bodies: Collection[str] = ()) -> Module:
    """The module with matches of these rules as library calls, and functions named in `bodies` with those of no package."""
    main = module.functions[module.main]
    never_change = {p for p in main.parameters if p.name in context.constants}
    for b in main.bindings:
        if isinstance(b.value, OpCall) and b.value.op in VIEWS and b.value.args[0] in never_change:
            never_change.add(b.var)
    constants = {main.name: frozenset(never_change)}
    functions = {
        f.name: f
        if f.attr.get("origin") in _OTHERS
        else lower(f, module.functions, rules() if f.name in bodies else found, constants.get(f.name, frozenset()))
        for f in module
    }
    return Module(functions, module.kernels, module.main)


def lower(
    function: Function, functions: Mapping[str, Function], found: Sequence[Rule], constants: frozenset[Var] = frozenset()
) -> Function:
    """The function with matches of these rules as library calls; larger matches first, as later results are tried first.

    `constants` are its parameters that never change, and views of them.
    """
    builder = FunctionBuilder(function.name, functions)
    builder.parameters.extend(function.parameters)
    builder.names.update(p.name for p in function.parameters)
    counts = uses(function)
    readers: dict[Var, list[str]] = defaultdict(list)
    for b in function.bindings:
        for v in variables(b.value):
            readers[v].append(b.value.op if isinstance(b.value, OpCall) else "")
    for block in function.blocks:
        builder.bind_all(_lower_block(block, counts, readers, found, constants) if block.dataflow else block.bindings)
    return builder.finish(function.result, dims=function.dims, attrs=function.attrs)


def _lower_block(
    block: Block,
    counts: Counter[Var],
    readers: Mapping[Var, Sequence[str]],
    found: Sequence[Rule],
    constants: frozenset[Var],
) -> list[Binding]:
    definitions: dict[Var, Expr] = {b.var: b.value for b in block.bindings}
    kept: list[Binding] = []
    gone: set[Var] = set()
    for b in reversed(block.bindings):
        if b.var in gone:
            continue
        call = _first_match(b, definitions, counts, tuple(readers.get(b.var, ())), found, constants)
        if call is not None:
            library, inner = call
            gone |= set(inner)
            for v in (b.var, *inner):
                # no other match may compute it again
                definitions.pop(v)
            b = Binding(b.var, library, b.where)
        kept.append(b)
    return kept[::-1]


def _first_match(
    b: Binding,
    definitions: Mapping[Var, Expr],
    counts: Counter[Var],
    readers: tuple[str, ...],
    found: Sequence[Rule],
    constants: frozenset[Var],
) -> tuple[LibraryCall, tuple[Var, ...]] | None:
    out = destinations(b.var.annotation)
    if out is None:
        return None
    for rule in found:
        for m in rule.pattern.roots(b.value, definitions):
            match = Match(m.operands, m.calls, m.inner, m.views, readers, constants)
            if not _only_reader(match, b.value, definitions, counts) or (rule.check and not rule.check(match)):
                continue
            args = tuple(match.operands[n] for n in rule.inputs if n in match.operands)
            attrs = tuple((rule.attributes(match) if rule.attributes else {}).items())
            return LibraryCall(rule.function, args, out, attrs), match.inner
    return None


def destinations(annotation: Annotation) -> tuple[TensorType, ...] | None:
    """The tensors that a caller would provide for a result; None where it cannot, because a dim or type is not known."""
    types = annotation.fields if isinstance(annotation, TupleType) else (annotation,)
    found = tuple(t for t in types if isinstance(t, TensorType) and t.dtype in ELEMENTS)
    return found if found and len(found) == len(types) else None


def _only_reader(m: Match, root: Expr, definitions: Mapping[Var, Expr], counts: Counter[Var]) -> bool:
    """Whether nothing but the match reads what it computes below its root, and the match not as an operand of its own."""
    inner = set(m.inner)
    if any(a in inner for a in m.operands.values()):
        return False
    # several ways may lead to one application
    within = Counter(v for e in (root, *(definitions[v] for v in inner | set(m.views))) for v in variables(e))
    return all(within[v] == counts[v] for v in inner)
