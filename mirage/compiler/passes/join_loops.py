"""Equal loops that need nothing of one another become one, whose rounds may run side by side.

    a = loop[forward]((h, c), (x, w), count=32)
    b = loop[backward]((h, c), (y, v), count=32)

such as both directions of a recurrent network, become

    both = loop[forward_joined]((h, c, h, c), (x, w, y, v), count=32)

where what is between them needs nothing of the first: it is computed before. The calls of one half of the new body wait for none
of the other half, which the virtual machine finds out, and gives each half a thread where that is faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, compress

from mirage.compiler.context import Context
from mirage.compiler.passes.rewrite import Rewriter
from mirage.compiler.passes.write_stacks import is_fresh
from mirage.compiler.views import positions
from mirage.ir.annotations import TupleType
from mirage.ir.graph.builder import FunctionBuilder, ModuleBuilder
from mirage.ir.graph.effects import is_pure
from mirage.ir.graph.nodes import (
    Atom,
    Binding,
    Expr,
    Function,
    KernelCall,
    LibraryCall,
    Loop,
    MakeTuple,
    Module,
    OpCall,
    PackedCall,
    TupleItem,
    Var,
)
from mirage.ir.graph.traverse import uses, variables, with_atoms
from mirage.ir.operators.in_place import EFFECTS


def run(module: Module, context: Context) -> Module:
    """The module with joined loops, on processors; the bodies that they had are called by nobody."""
    if context.kernels.target != "cpu":
        return module
    builder = ModuleBuilder(module)
    for f in module:
        for group, behind in _groups(f, module):
            f = _joined(f, group, behind, builder)
        builder.add(f)
    return builder.finish(module.main)


def _groups(function: Function, module: Module) -> list[tuple[list[Var], set[Var]]]:
    """The results of loops of a function that may become one, in order, and what is between them and needs some of them, so that
    it is computed behind; all else is computed before.
    """
    found: list[tuple[list[Binding], set[Var]]] = []
    held: list[Binding] = []
    #: what needs the results of those that are held
    behind: set[Var] = set()
    counts, made = uses(function), {b.var: b.value for b in function.bindings}
    for block in function.blocks:
        for b in block.bindings:
            is_loop, needs = _is_plain(b, counts, made, module), not behind.isdisjoint(variables(b.value))
            if is_loop and held and not needs and _alike(held[0], b, module):
                held.append(b)
                behind.add(b.var)
                found[-1] = held, set(behind)
            elif is_loop or not block.dataflow:
                # effects keep their places among the loops
                held = [b] if is_loop else []
                behind = {h.var for h in held}
                found.append((held, behind))
            elif needs:
                behind.add(b.var)
    return [([b.var for b in group], behind) for group, behind in found if len(group) > 1]


def _is_plain(b: Binding, counts: Counter[Var], made: Mapping[Var, Expr], module: Module) -> bool:
    """Whether it is a loop of a known count, whose body gives what it takes, and writes to nothing that is read beside."""
    loop = b.value
    if not isinstance(loop, Loop) or loop.count is None or loop.dims:
        return False
    body = module.functions[loop.body]
    _, *parameters = body.parameters
    given = [a.annotation for a in loop.args]
    # not a view of a tensor, which others may read by another name
    fresh = [isinstance(a, Var) and counts[a] == 1 and is_fresh(made.get(a), alone=True) for a in loop.args]
    alone = set(compress(parameters, fresh))
    own = all(is_pure(x.value, module.functions) or _writes_to(x.value, alone) for x in body.bindings)
    alike = own and [p.annotation for p in parameters] == given and not body.dims
    last = body.bindings[-1] if body.bindings else None
    tuples = last is not None and last.var is body.result and isinstance(last.value, MakeTuple)
    return alike and tuples and b.var.annotation == TupleType(tuple(given[: loop.carried]))


def _writes_to(value: Expr, tensors: Collection[Var]) -> bool:
    """Whether an effect is one of the IR, on one of these."""
    return isinstance(value, PackedCall) and value.function in EFFECTS and value.in_place == (0,) and value.args[0] in tensors


def _alike(one: Binding, other: Binding, module: Module) -> bool:
    """Whether two loops make as many rounds of the same calls."""
    a, b = one.value, other.value
    assert isinstance(a, Loop) and isinstance(b, Loop)
    return a.count == b.count and _calls(module.functions[a.body]) == _calls(module.functions[b.body])


def _calls(body: Function) -> list[tuple[type, str]]:
    """What a body computes, without its operands and positions of its index."""
    at, names = positions(body), []
    for b in body.bindings:
        match b.value:
            case KernelCall(kernel=name) | OpCall(op=name) | LibraryCall(function=name) | PackedCall(function=name):
                pass
            case _:
                name = ""
        if b.var not in at:
            names.append((type(b.value), name))
    return names


def _joined(function: Function, group: Sequence[Var], behind: Collection[Var], builder: ModuleBuilder) -> Function:
    """The function with the loops that give these results as one, where the last of them is, and this computed `behind`."""
    made = {b.var: b.value for b in function.bindings}
    loops = [loop for loop in map(made.get, group) if isinstance(loop, Loop)]
    body = _body(loops, builder)
    builder.add(body)
    r = Rewriter(function, builder.functions)
    #: the place of each loop's first result among all
    places = dict(zip(group, accumulate((loop.carried for loop in loops), initial=0), strict=False))
    items = [b for b in function.bindings if isinstance(b.value, TupleItem) and b.value.args[0] in places]
    read = uses(function)
    whole = [v for v in group if read[v] > sum(v in variables(b.value) for b in items)]
    both: Var | None = None

    def keep(b: Binding) -> None:
        value = b.value
        if both is not None and isinstance(value, TupleItem) and isinstance(of := value.args[0], Var) and of in places:
            r.keep(b, TupleItem((both,), places[of] + value.index))
        elif b.var not in places:
            r.keep(b)

    for b in function.bindings:
        if b.var not in behind:
            keep(b)
        if b.var is group[-1]:
            args = [tuple(map(r.read, loop.args)) for loop in loops]
            carried = [a for own, loop in zip(args, loops, strict=True) for a in own[: loop.carried]]
            fixed = [a for own, loop in zip(args, loops, strict=True) for a in own[loop.carried :]]
            joined = Loop(body.name, (*carried, *fixed), len(carried), loops[0].count)
            both = r.emit(joined, name=f"{b.var.name}_joined", where=b.where)
            for member, loop in zip(group, loops, strict=True):
                if member in whole:
                    found = [r.emit(TupleItem((both,), places[member] + k), where=b.where) for k in range(loop.carried)]
                    r.replace(member, r.emit(MakeTuple(tuple(found)), name=member.name, where=b.where))
            for later in function.bindings:
                if later.var in behind:
                    keep(later)
    return r.finish()


def _body(loops: Sequence[Loop], builder: ModuleBuilder) -> Function:
    """All bodies, one after the other, in one function."""
    bodies = [builder.functions[loop.body] for loop in loops]
    b = FunctionBuilder(builder.fresh(f"{loops[0].body}_joined"), builder.functions)
    index = b.parameter(bodies[0].parameters[0].name, bodies[0].parameters[0].annotation)
    new: list[dict[Var, Atom]] = [{body.parameters[0]: index} for body in bodies]
    for is_carried in (True, False):
        for loop, body, known in zip(loops, bodies, new, strict=True):
            some = body.parameters[1 : 1 + loop.carried] if is_carried else body.parameters[1 + loop.carried :]
            known |= {p: b.fresh_parameter(p.name, p.annotation) for p in some}
    results: list[Atom] = []
    for body, known in zip(bodies, new, strict=True):

        def read(a: Atom, known: dict[Var, Atom] = known) -> Atom:
            return known.get(a, a) if isinstance(a, Var) else a

        *bindings, last = body.bindings
        assert isinstance(last.value, MakeTuple) and last.var is body.result, "a body returns what it carries"
        for own in bindings:
            value = with_atoms(own.value, read)
            known[own.var] = b.bind(replace(own, var=Var(b.fresh(own.var.name), own.var.annotation), value=value))
        results += map(read, last.value.args)
    return b.finish(b.emit(MakeTuple(tuple(results)), name="carried"))
