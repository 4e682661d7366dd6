"""Constant operands of library functions are packed once: as the function reads them fastest, in a form of its own.

The packed form is an object that one packed function makes and one library function reads (`PACKED`). It is computed with
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
from mirage.ir.graph.nodes import Atom, Binding, Constant, Function, LibraryCall, MakeTuple, Module, PackedCall, Var
from mirage.ir.graph.traverse import with_atoms
from mirage.ir.program import AttrItems
from mirage.ir.types import TensorType

#: library function -> the function that packs its second operand, and the attributes that both have
PACKED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "blas.matmul": ("cpu.pack_matmul", ("right",)),
    "cpu.convolution": ("cpu.pack_convolution", ("groups",)),
    "cpu.dequantized_matmul": ("cpu.pack_dequantized", ("right",)),
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
        weight = _packable(call, constants, made, context) if isinstance(call, LibraryCall) else None
        if not isinstance(call, LibraryCall) or weight is None:
            r.keep(b)
            continue
        pack, shared = PACKED[call.function]
        attrs = tuple(pair for pair in call.attrs if pair[0] in shared)
        key = weight, pack, attrs
        if key not in packings:
            packings[key] = r.builder.fresh_parameter(f"{_name(weight)}_packed", ObjectType())
        args: tuple[Atom, ...] = (*call.args[:2], packings[key], *call.args[2:])
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
) -> Constant | Var | None:
    """The weight of a call that is to read it packed, and does not yet; None where there is none."""
    if call.function not in PACKED or dict(call.attrs).get("packed"):
        return None
    weight = call.args[1]
    if isinstance(weight, Var) and weight not in constants:
        if PACKED[call.function][0] not in _AT_ONCE or weight not in made or not no_larger(weight, made):
            return None
    assert isinstance(weight, Constant | Var)
    return weight if call.function != "blas.matmul" or _reads_panels(call, weight, context) else None


def _reads_panels(call: LibraryCall, weight: Constant | Var, context: Context) -> bool:
    """Whether a product is one with a matrix of float32, which may be transposed, on a processor."""
    t = weight.annotation
    is_matrix = isinstance(t, TensorType) and t.rank == 2 and t.dtype == "float32"
    return context.kernels.target == "cpu" and is_matrix and dict(call.attrs).get("right", ()) in ((), (1, 0))


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
