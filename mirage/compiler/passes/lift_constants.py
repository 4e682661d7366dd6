"""Computations over constants only are moved out of the main function, and run once per set of constant arrays.

They become a function of its own, with ("origin", "prepare") among its attributes:

    def prepare(w: float32[k, n], v: float32[k, m]) -> Tuple[float32[k, m+n]]     parameters of main that never change, by name
    def main(x: float32[b, k], w: ..., v: ..., lifted: float32[k, m+n])           one more parameter per field, at the end

`main` says ("prepare", "prepare") among its attributes: the name of that function. Whoever runs `main` calls `prepare` with
the arguments of these names, keeps the fields as long as the arrays stay the same, and passes them behind the user's
arguments. The new parameters never change either, and join `Context.constants`. What `prepare` would round several times it
computes in float64 (`widen`).

Lifted is what pays for the memory that is then kept: a result of known shape, not larger than the constants that it is made
of, or the weights of a convolution, such as those of int8 that are dequantized: these are read as float32 alone, and packed, in
every call if not once. What only reads a constant in another order (reshapes, transposes) stays, as kernels do so for free, but
where a library function or all rounds of a loop read it, for which it would be made in every call, and where it is the matrix of
a product: such matrices are packed. What the main function returns, and what an effect may write to, is computed anew in every
call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import sympy

from mirage.compiler.context import Context
from mirage.compiler.passes.in_place import written_variables
from mirage.compiler.passes.rewrite import Rewriter
from mirage.compiler.passes.widen import emit_widened
from mirage.ir.annotations import symbols_in
from mirage.ir.dims import Dim
from mirage.ir.graph.builder import FunctionBuilder, ModuleBuilder
from mirage.ir.graph.nodes import Atom, Binding, Function, LibraryCall, Loop, MakeTuple, Module, OpCall, ShapeValue, Var
from mirage.ir.graph.traverse import determined, symbols_used, variables
from mirage.ir.types import ELEMENTS, TensorType

#: the attribute of main that names the function, and that function's origin
PREPARE = "prepare"
VIEWS = ("reshape", "transpose")


def run(module: Module, context: Context) -> Module:
    """The module with the constant computations of `main` in a function of their own; extends `context.constants`."""
    main = module.functions[module.main]
    weights = [p for p in main.parameters if p.name in context.constants]
    constant = constant_values(main, weights, module.functions)
    results, kept = choose(main, constant)
    if PREPARE in main.attr or not results:
        return module
    builder = ModuleBuilder(module)
    prepare = _prepare(weights, constant, results, builder)
    builder.add(prepare)
    r = Rewriter(main, module.functions)
    added = [r.builder.fresh_parameter(f"{v.name}_lifted", v.annotation) for v in results]
    for v, p in zip(results, added, strict=True):
        r.replace(v, p)
    for b in main.bindings:
        if b.var not in constant or b.var in kept:
            r.keep(b)
    builder.add(r.finish(attrs=(*main.attrs, (PREPARE, prepare.name))))
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


def choose(function: Function, constant: Mapping[Var, Binding]) -> tuple[list[Var], set[Var]]:
    """Which of the constant values are prepared, in order, and which are computed in every call nevertheless."""
    handed_out = set(_handed_out(function))
    in_order = set(_read_in_order(function))
    matrices = set(_matrices(function, constant))
    convolved = {b.value.args[1] for b in function.bindings if isinstance(b.value, OpCall) and b.value.op == "convolution"}
    results: set[Var] = set()
    kept: set[Var] = set()
    todo = [v for b in function.bindings if b.var not in constant for v in variables(b.value)]
    todo += [*handed_out, *in_order]
    while todo:
        v = todo.pop()
        if v not in constant or v in results or v in kept:
            continue
        made = constant[v].value
        is_view = isinstance(made, OpCall) and made.op in VIEWS and v not in in_order
        # another shape or order costs nothing, and others may see through it
        computed = not is_view and _is_computed(v, constant, in_order=v in in_order)
        if (computed or v in matrices) and v not in handed_out and (v in convolved or no_larger(v, constant)):
            results.add(v)
        else:
            kept.add(v)
            todo += variables(made)
    return [v for v in constant if v in results], kept


def _read_in_order(function: Function) -> Iterator[Var]:
    """What library functions read, and all rounds of a loop."""
    for b in function.bindings:
        if isinstance(b.value, LibraryCall):
            yield from variables(b.value)
        elif isinstance(b.value, Loop):
            yield from (a for a in b.value.args[_first_invariant(b.value) :] if isinstance(a, Var))


def _matrices(function: Function, constant: Mapping[Var, Binding]) -> Iterator[Var]:
    """Views of constants that products have as their matrices, as they are or transposed."""
    for b in function.bindings:
        matrix = b.value.args[1] if isinstance(b.value, OpCall) and b.value.op == "matmul" else None
        if not isinstance(matrix, Var) or matrix not in constant:
            continue
        made = constant[matrix].value
        if isinstance(made, OpCall) and made.op == "transpose" and dict(made.attrs)["perm"] == (1, 0):
            matrix = made.args[0]
        is_matrix = isinstance(t := matrix.annotation, TensorType) and t.rank == 2
        if isinstance(matrix, Var) and matrix in constant and is_matrix and _origin(matrix, constant)[0] <= set(VIEWS):
            yield matrix


def _first_invariant(loop: Loop) -> int:
    return loop.carried + (loop.count is None)


def _handed_out(function: Function) -> Iterator[Var]:
    """What is not only read by operators: results, fields of tuples, arguments of calls but those that a loop only reads."""
    if isinstance(function.result, Var):
        yield function.result
    for b in function.bindings:
        if isinstance(b.value, Loop):
            yield from (a for a in b.value.args[: _first_invariant(b.value)] if isinstance(a, Var))
        elif not isinstance(b.value, OpCall | LibraryCall):
            yield from variables(b.value)


def _is_computed(v: Var, constant: Mapping[Var, Binding], in_order: bool) -> bool:
    """Whether a value is a tensor that is computed, not only read in another order; where it is read `in_order`, a transposed one
    is computed, too.
    """
    if not isinstance(v.annotation, TensorType) or v.annotation.dtype not in ELEMENTS:
        return False
    ops, _ = _origin(v, constant)
    return any(op not in (*VIEWS, "constant", "size") or (in_order and op == "transpose") for op in ops)


def no_larger(v: Atom, constant: Mapping[Var, Binding]) -> bool:
    """Whether a value is no larger than the constants that it is made of: one that is made once instead of them costs no more to
    read.
    """
    _, sources = _origin(v, constant)
    total = sum((_bytes(a) for a in sources), sympy.Integer(0))
    return _never_negative(sympy.expand(total - _bytes(v)))


def _origin(v: Atom, constant: Mapping[Var, Binding]) -> tuple[set[str], dict[Atom, None]]:
    """The operators that a value is made by, and the constants that it is made of."""
    ops: set[str] = set()
    sources: dict[Atom, None] = {}
    todo: list[Atom] = [v]
    seen: set[Atom] = set()
    while todo:
        atom = todo.pop()
        if atom in seen or isinstance(atom, ShapeValue):
            continue
        seen.add(atom)
        made = constant.get(atom) if isinstance(atom, Var) else None
        if made is None or not isinstance(made.value, OpCall):
            sources[atom] = None
            continue
        ops.add(made.value.op)
        todo += made.value.args
    return ops, sources


def _bytes(atom: Atom) -> Dim:
    t = atom.annotation
    assert isinstance(t, TensorType)
    return sympy.expand(sympy.prod(t.shape) * ELEMENTS[t.dtype].itemsize)


def _never_negative(difference: Dim) -> bool:
    return all(c >= 0 for c in difference.as_coefficients_dict().values())


def _prepare(
    weights: Sequence[Var], constant: Mapping[Var, Binding], results: Sequence[Var], module: ModuleBuilder
) -> Function:
    """The function that computes the results: its parameters are the weights that it reads, or needs for a dim."""
    wanted = set(results)
    for v in reversed(list(constant)):
        if v in wanted:
            wanted |= set(variables(constant[v].value))
    bindings = [b for v, b in constant.items() if v in wanted]
    needed = {s for b in bindings for s in (*symbols_used(b.value), *symbols_in(b.var.annotation))}
    given = [p for p in weights if p in wanted]
    needed |= {s for p in given for s in symbols_in(p.annotation)}
    for p in weights:
        if (
            p not in given
            and not needed <= determined(q.annotation for q in given)
            and needed & symbols_in(p.annotation)
        ):
            given.append(p)
            needed |= symbols_in(p.annotation)
    builder = FunctionBuilder(module.fresh(PREPARE), module.functions)
    new: dict[Var, Var] = {p: builder.parameter(p.name, p.annotation) for p in weights if p in given}
    packed = builder.emit(MakeTuple(tuple(emit_widened(bindings, results, new, builder))), name="prepared")
    return builder.finish(packed, attrs=(("origin", PREPARE),))
