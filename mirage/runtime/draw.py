"""Drawings of compiled programs as SVG: a flow chart per function, with what runs as boxes and the shapes of the results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mirage.drawing.flow import Flow, to_svg
from mirage.drawing.show import View, show
from mirage.ir.types import TensorType, shape_text
from mirage.runtime import program as vm
from mirage.runtime.executable import Executable


@show.register
def _(executable: Executable) -> View:
    """A flow chart per function, the main one first, with what each kernel is in words."""
    program, kernels = executable.program, executable.told()
    functions = sorted(program, key=lambda f: f.name != program.main)
    return View(svg=to_svg(program.main, [_flow(program, f, kernels) for f in functions]))


def _flow(program: vm.VMProgram, function: vm.VMFunction, kernels: Mapping[str, str]) -> Flow:
    flow = Flow(function.name, ", ".join(str(g) for g in function.guards))
    types: dict[int, str] = {}
    for k, p in enumerate(function.parameters):
        types[k] = str(p.annotation)
        flow.step("input", p.name, [types[k]], makes=[k])
    for register, k in function.constants:
        types[register] = str(program.constants[k])
        flow.step("input", "constant", [types[register]], makes=[register])
    fields: dict[int, tuple[int, ...]] = {}
    # a cast behind what NumPy computes says its type
    casts = {i.value: str(i.annotation) for i in function.code if isinstance(i, vm.MatchShape)}

    def made(registers: Iterable[int]) -> list[str]:
        return [types[r] for r in registers if r in types]

    for i in function.code:
        match i:
            case vm.MakeTensor():
                types[i.out] = str(TensorType(i.shape, i.dtype))
            case vm.Reshape():
                flow.alias(i.out, i.value)
                types[i.out] = f"{types.get(i.value, '').partition('[')[0]}[{shape_text(i.shape)}]"
            case vm.CallKernel():
                name = program.kernels[i.kernel]
                flow.step("kernel", name, [kernels.get(name, ""), *made(i.outputs)], i.inputs, i.outputs)
            case vm.CallLibrary():
                flow.step("matmul", i.function, made(i.outputs), i.inputs, i.outputs)
            case vm.CallOperator() | vm.CallPacked():
                types |= {i.out: casts[i.out]} if i.out in casts else {}
                kind, title = ("operator", i.operator) if isinstance(i, vm.CallOperator) else ("effect", i.function)
                flow.step(kind, title, made([i.out]), i.args, [i.out])
            case vm.CallFunction():
                flow.step("control", f"call {i.function}", (), i.args, [i.out])
            case vm.If():
                flow.step("control", f"{i.then} or {i.orelse}", (), (i.condition, *i.args), [i.out])
            case vm.Loop():
                times = () if i.times is None else (i.times,)
                flow.step("control", f"loop of {i.body}", (), (*times, *i.carried, *i.invariant), [i.out])
            case vm.MakeTuple():
                flow.group(i.out, i.items)
                fields[i.out] = i.items
            case vm.GetItem():
                flow.item(i.out, i.value, i.index)
                items = fields.get(i.value, ())
                if i.index < len(items) and items[i.index] in types:
                    types[i.out] = types[items[i.index]]
            case vm.Return():
                flow.result(i.value, made(fields.get(i.value, (i.value,))))
    return flow
