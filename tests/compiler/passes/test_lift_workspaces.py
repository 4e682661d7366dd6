"""Workspaces as arguments of kernel calls."""

from __future__ import annotations

from dataclasses import dataclass

from mirage.compiler.context import Context
from mirage.compiler.passes import lift_workspaces
from mirage.ir.graph.builder import FunctionBuilder, ModuleBuilder
from mirage.ir.graph.nodes import Kernel, KernelCall, Module
from mirage.ir.types import TensorType, tensor


@dataclass
class Needy:
    """A kernel over dims p and q."""

    workspace_types: tuple[TensorType, ...]
    symbols: tuple[str, ...] = ("p", "q")
    output_types: tuple[TensorType, ...] = (tensor("p"),)
    kind = "needy"

    def to_text(self) -> str:
        return ""


def lifted(kernel: Kernel) -> KernelCall:
    b = ModuleBuilder()
    f = FunctionBuilder("main", b.functions)
    x = f.parameter("x", tensor("n", 4))
    name = b.add_kernel("k", kernel)
    n, four = tensor("n", 4).shape
    y = f.emit(KernelCall(name, (x,), (tensor("n"),), (n, four)))
    b.add(f.finish(y))
    module: Module = lift_workspaces.run(b.finish(), Context())
    (binding,) = module.functions["main"].bindings
    assert isinstance(binding.value, KernelCall)
    return binding.value


def test_workspaces_are_over_the_dims_of_the_caller() -> None:
    call = lifted(Needy((tensor("p*q + 8"), tensor("q", dtype="int64"))))
    assert [str(t) for t in call.workspace] == ["float32[4*n + 8]", "int64[4]"]


def test_kernels_that_need_nothing_get_nothing() -> None:
    assert lifted(Needy(())).workspace == ()
