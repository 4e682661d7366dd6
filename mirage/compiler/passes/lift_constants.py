"""Computations over constants only are moved out of the main function, and run once per set of constant arrays.

They become a function of its own, with ("origin", "prepare") among its attributes:

    def prepare(w: float32[k, n], v: float32[k, m]) -> Tuple[float32[k, m+n]]     parameters of main that never change, by name
    def main(x: float32[b, k], w: ..., v: ..., lifted: float32[k, m+n])           one more parameter per field, at the end

`main` says ("prepare", "prepare") among its attributes: the name of that function. Whoever runs `main` calls `prepare` with
the arguments of these names, keeps the fields as long as the arrays stay the same, and passes them behind the user's
arguments. The new parameters never change either, and join `Context.constants`.

Lifted is what pays for the memory that is then kept: a result of known shape, not larger than the constants that it is made
of; what only reads a constant in another order (reshapes, transposes) stays, as kernels do so for free. What the main function
returns, and what an effect may write to, is computed anew in every call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import sympy

from mirage.compiler.context import Context
from mirage.compiler.passes.in_place import written_variables
from mirage.compiler.passes.rewrite import Rewriter
from mirage.ir.annotations import dims_of, symbols_in
from mirage.ir.dims import Dim, symbols_of
from mirage.ir.graph.builder import FunctionBuilder, ModuleBuilder
from mirage.ir.graph.nodes import Atom, Binding, Function, MakeTuple, Module, OpCall, ShapeValue, Var
from mirage.ir.graph.traverse import determined, symbols_used, variables, with_atoms
from mirage.ir.types import ELEMENTS, TensorType

#: the attribute of main that names the function, and that function's origin
PREPARE = "prepare"
_VIEWS = ("reshape", "transpose")


def run(module: Module, context: Context) -> Module:
    """The module with the constant computations of `main` in a function of their own; extends `context.constants`."""
    main = module.functions[module.main]
    weights = [p for p in main.parameters if p.name in context.constants]
    lifted = find_lifted(main, weights, module.functions)
    if PREPARE in main.attr or not lifted:
        return module
    builder = ModuleBuilder(module)
    results = [v for v in lifted if v in _read_by_rest(main, lifted)]
    prepare = _prepare(main, weights, lifted, results, builder)
    builder.add(prepare)
    r = Rewriter(main, module.functions)
    for v in results:
        r.replace(v, r.builder.fresh_parameter(f"{v.name}_lifted", v.annotation))
    for b in main.bindings:
        if b.var not in lifted:
            r.keep(b)
    builder.add(r.finish(attrs=(*main.attrs, (PREPARE, prepare.name))))
    added = builder.functions[module.main].parameters[len(main.parameters) :]
    context.constants = (*context.constants, *(p.name for p in added))
    return builder.finish(module.main)


def constant_values(
    function: Function, weights: Collection[Var], functions: Mapping[str, Function]
) -> dict[Var, Binding]:
    """The bindings whose values depend on constants only: on these parameters and on arrays that the compiler knows.

    Scalar constants are among them; values that an effect may write to are not.
    """
    written = written_variables(function, functions)
    symbols = determined(p.annotation for p in weights)
    known: set[Var] = {p for p in weights if p not in written}
    found: dict[Var, Binding] = {}
    for b in function.bindings:
        if not isinstance(b.value, OpCall) or b.var in written:
            continue
        fixed = all(a in known for a in variables(b.value)) and symbols_used(b.value) <= symbols
        if fixed and isinstance(b.var.annotation, TensorType) and symbols_in(b.var.annotation) <= symbols:
            known.add(b.var)
            found[b.var] = b
    return found


def find_lifted(function: Function, weights: Collection[Var], functions: Mapping[str, Function]) -> dict[Var, Binding]:
    """The bindings that are lifted, in order."""
    found = constant_values(function, weights, functions)
    returned = set(_handed_out(function))
    while True:
        outside = _read_by_rest(function, found)
        bad = [v for v in found if v in outside and (v in returned or not _pays(v, found))]
        unread = [v for v in found if v not in outside and not _read_inside(v, found)]
        if not bad and not unread:
            return found
        for v in (*bad, *unread):
            found.pop(v, None)


def _handed_out(function: Function) -> Iterator[Var]:
    """What is not only read by operators: results, fields of tuples, arguments of calls."""
    if isinstance(function.result, Var):
        yield function.result
    for b in function.bindings:
        if not isinstance(b.value, OpCall):
            yield from variables(b.value)


def _read_by_rest(function: Function, lifted: Mapping[Var, Binding]) -> set[Var]:
    read = {v for b in function.bindings if b.var not in lifted for v in variables(b.value)}
    return read | ({function.result} if isinstance(function.result, Var) else set())


def _read_inside(v: Var, lifted: Mapping[Var, Binding]) -> bool:
    return any(v in variables(b.value) for b in lifted.values())


def _pays(v: Var, lifted: Mapping[Var, Binding]) -> bool:
    """Whether a value is computed, not only read in another order, and no larger than the constants that it is made of."""
    if not isinstance(v.annotation, TensorType) or v.annotation.dtype not in ELEMENTS:
        return False
    computed = False
    sources: dict[Atom, None] = {}
    todo: list[Atom] = [v]
    seen: set[Atom] = set()
    while todo:
        atom = todo.pop()
        if atom in seen or isinstance(atom, ShapeValue):
            continue
        seen.add(atom)
        made = lifted.get(atom) if isinstance(atom, Var) else None
        if made is None or not isinstance(made.value, OpCall):
            sources[atom] = None
            continue
        computed |= made.value.op not in (*_VIEWS, "constant", "size")
        todo += made.value.args
    total = sum((_bytes(a) for a in sources), sympy.Integer(0))
    return computed and _never_negative(sympy.expand(total - _bytes(v)))


def _bytes(atom: Atom) -> Dim:
    t = atom.annotation
    assert isinstance(t, TensorType)
    return sympy.expand(sympy.prod(t.shape) * ELEMENTS[t.dtype].itemsize)


def _never_negative(difference: Dim) -> bool:
    return all(c >= 0 for c in difference.as_coefficients_dict().values())


def _prepare(
    main: Function, weights: list[Var], lifted: Mapping[Var, Binding], results: list[Var], module: ModuleBuilder
) -> Function:
    """The function of the lifted bindings: its parameters are the weights that it reads, or needs for a dim."""
    used = {v for b in lifted.values() for v in variables(b.value)}
    needed = {s for b in lifted.values() for s in (*symbols_used(b.value), *symbols_in(b.var.annotation))}
    given = [p for p in weights if p in used]
    needed |= {s for p in given for s in symbols_in(p.annotation)}
    for p in weights:
        if p not in given and not needed <= determined(q.annotation for q in given):
            if needed & {s for d in dims_of(p.annotation) for s in symbols_of(d)}:
                given.append(p)
    builder = FunctionBuilder(module.fresh(PREPARE), module.functions)
    new: dict[Var, Var] = {p: builder.parameter(p.name, p.annotation) for p in weights if p in given}
    for b in lifted.values():
        value = with_atoms(b.value, lambda a: new.get(a, a) if isinstance(a, Var) else a)
        new[b.var] = builder.bind(Binding(Var(b.var.name, b.var.annotation), value, b.where))
    packed = builder.emit(MakeTuple(tuple(new[v] for v in results)), name="prepared")
    return builder.finish(packed, attrs=(("origin", PREPARE),))
