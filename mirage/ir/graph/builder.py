"""Builders: functions and modules made binding by binding, with annotations deduced on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mirage.errors import GraphError, MirageError, TraceError
from mirage.ir.annotations import Annotation
from mirage.ir.graph.deduce import deduce, located, settled
from mirage.ir.graph.effects import is_pure
from mirage.ir.graph.nodes import Atom, Binding, Block, Constant, Expr, Function, Kernel, Module, ShapeValue, Var
from mirage.ir.program import AttrItems
from mirage.ir.program import identifier as checked_identifier


class FunctionBuilder:
    """Appends bindings to a function; pure ones go into dataflow blocks, others stand beside them.

    `functions` are those that calls may name; it may grow while the function is built.
    """

    def __init__(self, name: str, functions: Mapping[str, Function]) -> None:
        self.name = checked_identifier("function", name)
        self.functions = functions
        self.parameters: list[Var] = []
        self.names: set[str] = set()
        self._blocks: list[tuple[bool, list[Binding]]] = []
        self._next: dict[str, int] = {}

    def fresh(self, hint: str = "v") -> str:
        """A name that the function does not use yet: the hint, with a number behind if need be."""
        if hint not in self.names and hint != "v":
            name = hint
        else:
            stem = hint.rstrip("0123456789") or "v"
            k = self._next.get(stem, 0)
            while f"{stem}{k}" in self.names:
                k += 1
            name, self._next[stem] = f"{stem}{k}", k + 1
        self.names.add(name)
        return name

    def parameter(self, name: str, annotation: Annotation) -> Var:
        """Declare the next parameter; raises TraceError for a name that is taken or no identifier."""
        if name in self.names:
            raise TraceError(f"{self.name}: parameter {name!r} is declared twice; give each its own name")
        self.names.add(checked_identifier("parameter", name))
        self.parameters.append(Var(name, annotation))
        return self.parameters[-1]

    def fresh_parameter(self, hint: str, annotation: Annotation) -> Var:
        """Declare the next parameter under a fresh name."""
        self.parameters.append(Var(self.fresh(hint), annotation))
        return self.parameters[-1]

    def emit(
        self, value: Expr, *, name: str = "v", annotation: Annotation | None = None, where: str = ""
    ) -> Var:
        """Bind an expression to a new variable.

        `annotation`, where given, replaces the deduced one: for passes that know more. Raises what the deduction raises,
        with the line `where` in front.
        """
        try:
            value = settled(value)
            found = annotation or deduce(value, self.functions)
        except MirageError as e:
            raise located(e, where) from None
        return self.bind(Binding(Var(self.fresh(name), found), value, where))

    def bind(self, binding: Binding) -> Var:
        """Append a binding as it is, keeping its variable."""
        self.names.add(binding.var.name)
        pure = is_pure(binding.value, self.functions)
        if not self._blocks or self._blocks[-1][0] != pure:
            self._blocks.append((pure, []))
        self._blocks[-1][1].append(binding)
        return binding.var

    def definition(self, atom: Atom) -> Binding | None:
        """The binding that an atom is the variable of, if it is one of the last block."""
        return next((b for b in reversed(self._blocks[-1][1]) if b.var == atom), None) if self._blocks else None

    def bind_all(self, bindings: Iterable[Binding]) -> None:
        for b in bindings:
            self.bind(b)

    def finish(self, result: Atom, *, dims: tuple[str, ...] = (), attrs: AttrItems = ()) -> Function:
        """The function that returns this atom."""
        if not isinstance(result, Var | Constant | ShapeValue):
            raise GraphError(f"{self.name}: the result is not a variable, constant or shape; bind it first")
        blocks = tuple(Block(tuple(bindings), pure) for pure, bindings in self._blocks)
        return Function(self.name, tuple(self.parameters), blocks, result, dims, attrs)


class ModuleBuilder:
    """Collects functions and kernels under names of their own."""

    def __init__(self, module: Module | None = None) -> None:
        self.functions: dict[str, Function] = dict(module.functions) if module else {}
        self.kernels: dict[str, Kernel] = dict(module.kernels) if module else {}

    def fresh(self, hint: str) -> str:
        """A name that no function or kernel has: the hint, with a number behind if need be."""
        name, k = hint, 0
        while name in self.functions or name in self.kernels:
            name, k = f"{hint}_{k}", k + 1
        return name

    def add(self, function: Function) -> str:
        """Add or replace a function; returns its name."""
        self.functions[function.name] = function
        return function.name

    def add_kernel(self, hint: str, kernel: Kernel) -> str:
        """Add a kernel under a fresh name, which is returned."""
        name = self.fresh(hint)
        self.kernels[name] = kernel
        return name

    def finish(self, main: str = "main") -> Module:
        return Module(self.functions, self.kernels, main)
