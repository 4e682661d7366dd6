"""Constant factors of a convolution's outputs become a part of its weights, as those of a batch normalization are.

    v = convolution(x, w)                       u = mul(w, reshape(s, (o, 1, ...)))
    p = add(v, b)                      ->       v = convolution(x, u)
    r = mul(p, s)                               r = add(v, mul(b, s))

w, b and s are constants, s and b along the outputs only, so that what is new here is computed once (`lift_constants`). What is
subtracted is added with the other sign; what is then added along the outputs joins b (`join_offsets`). A convolution with windows
of one element may be a product of its weights as a matrix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from mirage.compiler.context import Context
from mirage.compiler.passes.lift_constants import constant_values
from mirage.compiler.passes.rewrite import Rewriter, operator_call
from mirage.compiler.patterns.convolutions import is_per_output
from mirage.ir.graph.builder import ModuleBuilder
from mirage.ir.graph.nodes import Atom, Binding, Constant, Expr, Module, OpCall, Var
from mirage.ir.graph.traverse import uses
from mirage.ir.types import TensorType


def run(module: Module, context: Context) -> Module:
    """The module with such factors folded in its main function; its parameters `context.constants` are constants."""
    main = module.functions[module.main]
    weights = [p for p in main.parameters if p.name in context.constants]
    constant = {*weights, *constant_values(main, weights, module.functions)}
    r = Rewriter(main, module.functions)
    fold = _Fold(r, constant, {b.var: b.value for b in main.bindings}, uses(main))
    for b in main.bindings:
        r.keep(b, fold.folded(b))
    builder = ModuleBuilder(module)
    builder.add(r.finish())
    return builder.finish(module.main)


@dataclass(frozen=True)
class _Fold:
    """What is known of the old function."""

    rewriter: Rewriter
    constant: Collection[Var]
    definitions: dict[Var, Expr]
    counts: Counter[Var]

    def folded(self, b: Binding) -> OpCall | None:
        """A product of a convolution and a factor without the factor; None where it is none."""
        call, out = b.value, b.var.annotation
        if not isinstance(call, OpCall) or call.op != "mul" or not isinstance(out, TensorType) or out.rank < 3:
            return None
        for x, factor in (call.args, call.args[::-1]):
            if x.annotation == out and self._is_along_outputs(factor, out):
                return self._scaled(x, factor, out)
        return None

    def _is_along_outputs(self, atom: Atom, out: TensorType) -> bool:
        return self._is_constant(atom) and is_per_output(atom.annotation, out)

    def _is_constant(self, atom: Atom) -> bool:
        return isinstance(atom, Constant) or atom in self.constant

    def _inner(self, atom: Atom, op: str) -> OpCall | None:
        """The application of an operator that nothing else reads."""
        made = self.definitions.get(atom) if isinstance(atom, Var) and self.counts[atom] == 1 else None
        return made if isinstance(made, OpCall) and made.op == op else None

    def _scaled(self, x: Atom, factor: Atom, out: TensorType) -> OpCall | None:
        read, emit = self.rewriter.read, self.rewriter.emit
        if less := self._inner(x, "sub"):
            product, offset = less.args
            if not self._is_along_outputs(offset, out) or product.annotation != out:
                return None
            inner = self._product(product, factor, out)
            if inner is None:
                return None
            minus = emit(operator_call("neg", emit(operator_call("mul", read(offset), read(factor)))))
            return operator_call("add", emit(inner), minus)
        if summed := self._inner(x, "add"):
            for product, offset in (summed.args, summed.args[::-1]):
                if self._is_along_outputs(offset, out) and product.annotation == out:
                    inner = self._product(product, factor, out)
                    if inner is None:
                        return None
                    return operator_call("add", emit(inner), emit(operator_call("mul", read(offset), read(factor))))
            return None
        return self._product(x, factor, out)

    def _product(self, x: Atom, factor: Atom, out: TensorType) -> OpCall | None:
        """The convolution of scaled weights."""
        read, emit = self.rewriter.read, self.rewriter.emit
        call = self._inner(x, "convolution")
        if call is not None and self._is_constant(call.args[1]):
            return OpCall("convolution", (read(call.args[0]), self._weights(call.args[1], factor)), call.attrs)
        space = self._inner(x, "reshape")
        product = space and self._inner(space.args[0], "matmul")
        matrix = self._matrix(product.args[0]) if product else None
        if space is None or product is None or matrix is None or not self._keeps_outputs(space, product, out):
            return None
        (w,) = matrix.args
        scaled = OpCall("reshape", (self._weights(w, factor),), matrix.attrs)
        return OpCall("reshape", (emit(OpCall("matmul", (emit(scaled), read(product.args[1])))),), space.attrs)

    def _matrix(self, atom: Atom) -> OpCall | None:
        """Constant weights `[o, c, 1, ...]` that are read as a matrix."""
        made = self.definitions.get(atom) if isinstance(atom, Var) else None
        if not isinstance(made, OpCall) or made.op != "reshape" or not self._is_constant(made.args[0]):
            return None
        w, matrix = made.args[0].annotation, atom.annotation
        if not isinstance(w, TensorType) or not isinstance(matrix, TensorType) or w.rank < 3:
            return None
        return made if w.shape[:2] == matrix.shape else None

    def _keeps_outputs(self, space: OpCall, product: OpCall, out: TensorType) -> bool:
        before = space.args[0].annotation
        return isinstance(before, TensorType) and before.rank == 3 and before.shape[:2] == out.shape[:2]

    def _weights(self, w: Atom, factor: Atom) -> Atom:
        read, emit = self.rewriter.read, self.rewriter.emit
        assert isinstance(w.annotation, TensorType)
        shape = (w.annotation.shape[0], *[1] * (w.annotation.rank - 1))
        along = emit(operator_call("reshape", read(factor), shape=shape))
        return emit(operator_call("mul", read(w), along), name="scaled")
