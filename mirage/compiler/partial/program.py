"""The program that a partial evaluation leaves, as it grows: its functions, and those that are still to be written."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirage.compiler.partial.budget import Budget
from mirage.compiler.partial.values import Closed
from mirage.compiler.passes.in_place import written_variables
from mirage.ir.annotations import Annotation
from mirage.ir.dims import Dim
from mirage.ir.graph.effects import callees, with_callees
from mirage.ir.graph.functional import functional
from mirage.ir.graph.nodes import Binding, Block, Function, Module, PackedCall, Var
from mirage.ir.graph.order import recursive


@dataclass(frozen=True)
class Request:
    """A function that is to be written: of a branch, for what is known of what it is handed on.

    Its parameters are `bound`, then the leaves of `handed`; `dims` are the shape arguments of the original function.
    """

    name: str
    original: str
    bound: tuple[Annotation, ...]
    handed: Closed
    dims: tuple[Dim, ...]


class Program:
    """What is left of a module.

    `functions` are those that are there: under their own names, functions of whose arguments nothing is known. Of those that are
    `waiting` there are only the signatures. `stopped` says of functions why their calls are not written out any further. `groups`
    numbers the recursions of the module, and `stacked` are the functions of which calls need a stack. `writes` says whether
    anything is written to in place.
    """

    def __init__(self, module: Module, budget: Budget) -> None:
        self.module = module
        self.budget = budget
        self.groups = recursive(module)
        self.stacked = functional(module)
        self.functions: dict[str, Function] = {}
        self.waiting: list[Request | str] = []
        self.stopped: dict[str, str] = {}
        effects = (b.value for f in module for b in f.bindings if isinstance(b.value, PackedCall))
        self.writes = any(e.in_place for e in effects)
        self._written: dict[str, frozenset[Var]] = {}
        self._names = {n: n for n in module.functions}
        self._taken = set(module.functions) | set(module.kernels)

    @property
    def hides_writes(self) -> bool:
        """Whether something is written to in place, and calls that are not known before may do that."""
        return self.writes and bool(self.groups or self.stacked)

    def is_own(self, f: Function, var: Var) -> bool:
        """Whether a variable must stay a value of its own, since it may be written to."""
        if not self.writes or self.hides_writes:
            return self.writes
        if f.name not in self._written:
            self._written[f.name] = written_variables(f, self.module.functions)
        return var in self._written[f.name]

    def fresh(self, hint: str) -> str:
        """A name that no function or kernel has."""
        name, k = hint, 0
        while name in self._taken:
            name, k = f"{hint}_{k}", k + 1
        self._taken.add(name)
        return name

    def rename(self, name: str) -> None:
        """The function has another name where nothing is known of it."""
        self._names[name] = self.fresh(name)

    def general(self, name: str) -> str:
        """The name of a function of which nothing is known, among those that are left."""
        new = self._names[name]
        if new not in self.functions:
            self.functions[new] = replace(self.module.functions[name], name=new)
            self.waiting.append(name)
        return new

    def stop(self, name: str) -> None:
        """Calls of a function are not written out any more."""
        self.stopped[name] = f"{name} is not unrolled further: it calls itself on known data more often than the budget allows"

    def copied(self, f: Function) -> Function:
        """A function as it is, of which nothing is evaluated."""

        def renamed(b: Binding) -> Binding:
            return replace(b, value=with_callees(b.value, {n: self.general(n) for n in callees(b.value)}))

        blocks = tuple(Block(tuple(map(renamed, block.bindings)), block.dataflow) for block in f.blocks)
        return replace(f, name=self._names[f.name], blocks=blocks)
