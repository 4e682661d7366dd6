"""What passes share: a function read binding by binding, and written again with some of them changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mirage.errors import MirageError
from mirage.ir.annotations import Annotation
from mirage.ir.dims import Dim, substitute
from mirage.ir.graph.builder import FunctionBuilder
from mirage.ir.graph.deduce import deduce, located
from mirage.ir.graph.effects import callees
from mirage.ir.graph.nodes import Atom, Binding, Expr, Function, OpCall, ShapeValue, Var
from mirage.ir.graph.traverse import with_atoms, with_dims
from mirage.ir.operator import get_operator
from mirage.ir.program import AttrItems
from mirage.ir.types import TensorType


def operator_call(op: str, *args: Atom, **attrs: Any) -> OpCall:
    """A call of a registered operator with canonical attributes; raises AttributeValueError for wrong ones."""
    return OpCall(op, args, tuple(get_operator(op).check_attrs(attrs).items()))


def reshaped(atom: Atom, shape: Sequence[Dim], emit: Callable[[Expr], Atom]) -> Atom:
    """A tensor in another shape: itself where it has that, else what `emit` binds."""
    same = isinstance(atom.annotation, TensorType) and atom.annotation.shape == tuple(shape)
    return atom if same else emit(operator_call("reshape", atom, shape=tuple(shape)))


class Rewriter:
    """Writes a function again: a pass goes over the old bindings in order and keeps, replaces or drops each.

    Reads of replaced variables, and dim symbols in `dims`, change in everything that is kept later. Annotations of changed
    bindings are deduced again. `definitions` are the right-hand sides of the new function's variables.
    """

    def __init__(self, function: Function, functions: Mapping[str, Function]) -> None:
        self.function = function
        self.functions = functions
        self.builder = FunctionBuilder(function.name, functions)
        self.builder.parameters.extend(function.parameters)
        self.builder.names.update(p.name for p in function.parameters)
        self.builder.names.update(b.var.name for b in function.bindings)
        self.definitions: dict[Var, Expr] = {}
        self.dims: dict[str, Dim] = {}
        self._new: dict[Var, Atom] = {}

    def read(self, atom: Atom) -> Atom:
        """What stands for an operand of the old function in the new one."""
        if isinstance(atom, Var):
            return self._new.get(atom, atom)
        if isinstance(atom, ShapeValue) and self.dims:
            return ShapeValue(tuple(substitute(d, self.dims) for d in atom.dims))
        return atom

    def current(self, binding: Binding) -> Expr:
        """The right-hand side of an old binding as it reads now."""
        value = with_atoms(binding.value, self.read)
        return with_dims(value, lambda d: substitute(d, self.dims)) if self.dims else value

    def replace(self, var: Var, atom: Atom) -> None:
        """Drop the binding of a variable: whatever reads it reads this operand of the new function."""
        self._new[var] = atom

    def keep(self, binding: Binding, value: Expr | None = None) -> Var:
        """Append a binding as it reads now, or with another right-hand side; returns its variable.

        Raises what the deduction raises, with the user's line in front.
        """
        new = self.current(binding) if value is None else value
        var = binding.var
        if new != binding.value or callees(new):
            try:
                annotation = deduce(new, self.functions)
            except MirageError as e:
                raise located(e, binding.where) from None
            if annotation != var.annotation:
                var = Var(var.name, annotation)
                self._new[binding.var] = var
        self.builder.bind(Binding(var, new, binding.where))
        self.definitions[var] = new
        return var

    def emit(self, value: Expr, *, name: str = "v", annotation: Annotation | None = None, where: str = "") -> Var:
        """Append a new binding."""
        var = self.builder.emit(value, name=name, annotation=annotation, where=where)
        self.definitions[var] = value
        return var

    def finish(self, *, dims: tuple[str, ...] | None = None, attrs: AttrItems | None = None) -> Function:
        """The new function; `dims` and `attrs` as they were, unless given."""
        old = self.function
        return self.builder.finish(
            self.read(old.result), dims=old.dims if dims is None else dims, attrs=old.attrs if attrs is None else attrs
        )


class OperatorWriter:
    """Appends operators to the function that a rewriter writes, all of them at one line of the user's."""

    def __init__(self, r: Rewriter, where: str = "") -> None:
        self.r, self.where = r, where

    def op(self, op: str, *args: Atom, **attrs: object) -> Var:
        return self.r.emit(operator_call(op, *args, **attrs), name=op, where=self.where)

    def reshape(self, atom: Atom, shape: Sequence[Dim]) -> Atom:
        return reshaped(atom, shape, lambda value: self.r.emit(value, name="rows", where=self.where))

    def numbers(self, count: Dim, shape: Sequence[Dim]) -> Atom:
        """So many numbers from 0 on (int64), in a shape."""
        return self.reshape(self.op("arange", start=0, stop=count, dtype="int64"), shape)
