"""What kernels need between their steps becomes an argument of their calls (Relax, section 4.4).

So the memory is planned with all other tensors, and reused by them. Which tensors a kernel needs it says itself, over its
own dim symbols (`workspace_types`); a kernel that is not compiled yet does not.
"""

from __future__ import annotations

from dataclasses import replace

from mirage.compiler.context import Context
from mirage.ir.annotations import substitute_dims
from mirage.ir.dims import Dim
from mirage.ir.graph.builder import ModuleBuilder
from mirage.ir.graph.nodes import Binding, Block, Function, KernelCall, Module
from mirage.ir.types import TensorType


def run(module: Module, context: Context) -> Module:
    builder = ModuleBuilder(module)
    for f in module:
        blocks = tuple(Block(tuple(_lifted(b, module) for b in block.bindings), block.dataflow) for block in f.blocks)
        builder.add(Function(f.name, f.parameters, blocks, f.result, f.dims, f.attrs))
    return builder.finish(module.main)


def _lifted(binding: Binding, module: Module) -> Binding:
    call = binding.value
    if not isinstance(call, KernelCall):
        return binding
    kernel = module.kernels[call.kernel]
    dims: dict[str, Dim] = dict(zip(kernel.symbols, call.dims, strict=True))
    workspace = (substitute_dims(t, dims) for t in getattr(kernel, "workspace_types", ()))
    return replace(binding, value=replace(call, workspace=tuple(t for t in workspace if isinstance(t, TensorType))))
