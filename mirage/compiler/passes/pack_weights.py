"""Constant operands of library functions are packed once: as the function reads them fastest, in forms of their own.

A packed form is an object that one packed function makes and library functions read (`PACKED`). It is computed with
what else depends on constants only, in the function "prepare" of `lift_constants`, and becomes one more parameter of the main
function, at the end:

    r = library["blas.matmul", float32[n, m]](x, w, right=(1, 0))
    r = library["blas.matmul", float32[n, m]](x, w, w_packed, packed=True, right=(1, 0))

The operand itself stays: functions may read it where they have no use for its form.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from mirage.compiler.context import Context
from mirage.compiler.passes.lift_constants import PREPARE, constant_values, no_larger
from mirage.compiler.passes.rewrite import Rewriter
from mirage.ir.annotations import ObjectType
from mirage.ir.graph.builder import FunctionBuilder, ModuleBuilder
from mirage.ir.graph.nodes import (
    Atom,
    Binding,
    Constant,
    Function,
    LibraryCall,
    MakeTuple,
    Module,
    OpCall,
    PackedCall,
    Var,
)
from mirage.ir.graph.traverse import with_atoms
from mirage.ir.program import AttrItems
from mirage.ir.types import TensorType

#: library function -> the function that packs its second operand, where it is `gated` the third, too, and the attributes of both
PACKED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "blas.matmul": ("cpu.pack_matmul", ("right",)),
    "cpu.convolution": ("cpu.pack_convolution", ("groups",)),
    "cpu.dequantized_matmul": ("cpu.pack_dequantized", ("right",)),
    "cpu.grouped_matmul": ("cpu.pack_matmul", ("right",)),
    "cpu.narrowed_groups": ("cpu.pack_narrowed", ("right", "group", "dtype")),
    "cpu.narrowed_matmul": ("cpu.pack_narrowed", ("right", "group", "dynamic", "dtype")),
    "cpu.quantized_convolution": ("cpu.pack_quantized_convolution", ("groups",)),
    "cpu.quantized_matmul": ("cpu.pack_quantized", ("right", "group", "wide")),
}
#: functions that keep nothing of what they pack, which may be computed of constants then
_AT_ONCE = ("cpu.pack_dequantized", "cpu.pack_narrowed", "cpu.pack_quantized")
#: a weight, the function that packs it, and its attributes
Packing: TypeAlias = tuple[Constant | Var, str, AttrItems]


def run(module: Module, context: Context) -> Module:
    main = module.functions[module.main]
    constants = [p for p in main.parameters if p.name in context.constants]
    made = constant_values(main, constants, module.functions)
    packings: dict[Packing, Var] = {}
    r = Rewriter(main, module.functions)
    for b in main.bindings:
        call = b.value
        weights = _packable(call, constants, made, context) if isinstance(call, LibraryCall) else []
        if not isinstance(call, LibraryCall) or not weights:
            r.keep(b)
            continue
        pack, shared = PACKED[call.function]
        attrs = tuple(pair for pair in call.attrs if pair[0] in shared)
        for key in [(w, pack, attrs) for w in weights]:
            if key not in packings:
                packings[key] = r.builder.fresh_parameter(f"{_name(key[0])}_packed", ObjectType())
        last = 1 + len(weights)
        args: tuple[Atom, ...] = (*call.args[:last], *(packings[w, pack, attrs] for w in weights), *call.args[last:])
        r.keep(b, replace(call, args=tuple(map(r.read, args)), attrs=(*call.attrs, ("packed", True))))
    if not packings:
        return module
    builder = ModuleBuilder(module)
    prepare = _prepare(module, main, list(packings), made, builder)
    builder.add(prepare)
    builder.add(r.finish(attrs=main.attrs if PREPARE in main.attr else (*main.attrs, (PREPARE, prepare.name))))
    context.constants = (*context.constants, *(p.name for p in packings.values()))
    return builder.finish(module.main)


def _packable(
    call: LibraryCall, constants: Collection[Var], made: Mapping[Var, Binding], context: Context
) -> list[Constant | Var]:
    """The weights of a call that is to read them packed, and does not yet; none where it is not."""
    attrs = dict(call.attrs)
    if call.function not in PACKED or attrs.get("packed"):
        return []
    pack, _ = PACKED[call.function]
    weights: list[Constant | Var] = []
    for weight in call.args[1 : 3 if attrs.get("gated") else 2]:
        if isinstance(weight, Var) and weight not in constants:
            at_once = pack in _AT_ONCE and weight in made and no_larger(weight, made)
            if not (at_once or _is_reshaped(weight, constants, made)):
                return []
        assert isinstance(weight, Constant | Var)
        if pack == "cpu.pack_matmul" and not _reads_panels(call, weight, context):
            return []
        weights.append(weight)
    return weights


def _is_reshaped(weight: Var, constants: Collection[Var], made: Mapping[Var, Binding]) -> bool:
    """Whether it is a constant in another shape: no more memory, if it is kept."""
    match made[weight].value if weight in made else None:
        case OpCall("reshape", (Var() as of,)):
            return of in constants or _is_reshaped(of, constants, made)
    return False


def _reads_panels(call: LibraryCall, weight: Constant | Var, context: Context) -> bool:
    """Whether a product is one with a matrix of float32, or one of each group, which may be transposed, on a processor."""
    t, rank = weight.annotation, 2 if call.function == "blas.matmul" else 3
    is_weight = isinstance(t, TensorType) and t.rank == rank and t.dtype == "float32"
    return context.kernels.target == "cpu" and is_weight and dict(call.attrs).get("right", ()) in ((), (1, 0), (0, 2, 1))


def _name(weight: Constant | Var) -> str:
    return weight.name if isinstance(weight, Var) else "constant"


def _prepare(
    module: Module, main: Function, packings: Sequence[Packing], made: Mapping[Var, Binding], builder: ModuleBuilder
) -> Function:
    """The function that prepares what it did, and behind that the packed operands, which may be `made` of constants."""
    old = module.functions.get(str(main.attr.get(PREPARE)))
    b = FunctionBuilder(old.name if old else builder.fresh(PREPARE), module.functions)
    results: list[Atom] = []
    if old is not None:
        b.parameters.extend(old.parameters)
        b.names.update(p.name for p in old.parameters)
        *bindings, last = old.bindings
        assert isinstance(last.value, MakeTuple) and last.var is old.result, "it returns what it prepares"
        b.bind_all(bindings)
        results += last.value.args
    known: dict[str, Atom] = {p.name: p for p in b.parameters}
    # the last parameters of the main function are what was prepared
    known |= dict(zip((p.name for p in main.parameters[len(main.parameters) - len(results) :]), results, strict=True))

    def read(a: Atom) -> Atom:
        if not isinstance(a, Var):
            return a
        if a.name not in known and a in made:
            known[a.name] = b.emit(with_atoms(made[a].value, read), name=a.name)
        elif a.name not in known:
            known[a.name] = b.parameter(a.name, a.annotation)
        return known[a.name]

    for weight, pack, attrs in packings:
        results.append(b.emit(PackedCall(pack, (read(weight),), ObjectType(), attrs), name=f"{_name(weight)}_packed"))
    prepared = b.emit(MakeTuple(tuple(results)), name="prepared")
    return b.finish(prepared, attrs=old.attrs if old else (("origin", PREPARE),))
