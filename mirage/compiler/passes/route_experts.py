"""Mixtures of experts that compute all experts for all tokens compute, of each expert, the tokens that are sent to it.

    _, chosen = topk(logits, k=2)
    shares = put_along_axis(zeros, chosen, values)             rows = tokens, once for each expert, sorted by expert
    found = matmul(silu(matmul(x, w1)), w2)           ->       found = grouped_matmul(silu(grouped_matmul(rows, w1)), w2)
    r = sum(mul(found, shares), over experts)                  r = sum(mul(found, put back, values), over the k)

A sum over an axis times a tensor that is zero but at k distinct places of it is a sum over these places, for finite terms. What
is summed is made of products with weights [experts, in, out] and operators on elements, so that each row is made of its token
alone. Where k is at most half of the experts. Source: MegaBlocks (Gale et al., 2022), section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirage.compiler.context import Context
from mirage.compiler.passes.rewrite import OperatorWriter, Rewriter
from mirage.ir.dims import Dim, to_dim
from mirage.ir.graph.nodes import Atom, Expr, Function, Module, OpCall, TupleItem, Var
from mirage.ir.graph.traverse import uses
from mirage.ir.graph_operator import GraphElementwise
from mirage.ir.operator import Elementwise, get_operator
from mirage.ir.types import DTYPES, TensorType, is_one

_ONE = to_dim(1)


def run(module: Module, context: Context) -> Module:
    """The module whose functions send tokens to experts, where the target has products of groups of rows."""
    if not context.kernels.on_host:
        return module
    functions = {name: route(f, module.functions) for name, f in module.functions.items()}
    return Module(functions, module.kernels, module.main)


def route(function: Function, functions: Mapping[str, Function]) -> Function:
    """The function with such sums over the chosen experts alone; itself where it has none."""
    read = _Read(function)
    found = {b.var: mixture for b in function.bindings if (mixture := read.mixture(b.value)) is not None}
    if not found:
        return function
    r = Rewriter(function, functions)
    for b in function.bindings:
        if b.var in found:
            r.replace(b.var, _Routed(r, read, found[b.var], b.where).result())
        else:
            r.keep(b)
    return r.finish()


@dataclass(frozen=True)
class _Mixture:
    """A sum over experts of what they `found` [experts, n, h] times `shares` [n, experts], which are `values` [n, k] at the
    `chosen` places of each row.
    """

    found: Var
    chosen: Var
    values: Atom
    experts: Dim
    tokens: Dim
    k: Dim


class _Read:
    """What a function's variables are made of, and how often each is read."""

    def __init__(self, function: Function) -> None:
        self.values: dict[Var, Expr] = {b.var: b.value for b in function.bindings}
        self.counts = uses(function)

    def call(self, atom: Atom, *ops: str) -> OpCall | None:
        """The application of one of these operators that an operand is."""
        made = self.values.get(atom) if isinstance(atom, Var) else None
        return made if isinstance(made, OpCall) and made.op in ops else None

    def mixture(self, value: Expr) -> _Mixture | None:
        """The mixture that an expression is, if it is one."""
        if not isinstance(value, OpCall) or value.op != "sum" or dict(value.attrs)["keepdims"]:
            return None
        product = self.call(value.args[0], "mul")
        shape = _shape(value.args[0])
        if product is None or shape is None or len(shape) != 3 or dict(value.attrs)["axes"] not in ((0,), (-3,)):
            return None
        experts, tokens, _ = shape
        for found, share in (product.args, product.args[::-1]):
            put = self._shares(share, experts, tokens)
            if put is None or not isinstance(found, Var) or _shape(found) != shape:
                continue
            _, chosen, values = put.args
            k = _shape(chosen)[1]  # type: ignore[index]
            if not experts.is_Integer or not k.is_Integer or 2 * k > experts or not isinstance(chosen, Var):
                continue
            if self._is_distinct(chosen) and self._is_routable(found, experts, tokens) and self._multiplies(found):
                return _Mixture(found, chosen, values, experts, tokens, k)
        return None

    def _shares(self, atom: Atom, experts: Dim, tokens: Dim) -> OpCall | None:
        """The zeros with other values along their last axis that shares [experts, n, 1] are."""
        if _shape(atom) != (experts, tokens, _ONE):
            return None
        column = self.call(atom, "reshape")
        turned = self.call(column.args[0], "transpose") if column is not None else None
        if column is None or turned is None or _shape(column.args[0]) != (experts, tokens):
            return None
        put = self.call(turned.args[0], "put_along_axis")
        if put is None or dict(put.attrs)["axis"] not in (-1, 1) or _shape(put.args[1]) != _shape(put.args[2]):
            return None
        zeros = self.call(put.args[0], "full")
        return put if zeros is not None and not dict(zeros.attrs)["value"] else None

    def _is_distinct(self, chosen: Var) -> bool:
        """Whether places are those of `topk` along the last axis."""
        item = self.values.get(chosen)
        made = self.call(item.args[0], "topk") if isinstance(item, TupleItem) and item.index == 1 else None
        return made is not None and dict(made.attrs)["axis"] in (-1, 1)

    def _multiplies(self, atom: Atom) -> bool:
        """Whether a product is among what makes a routable value."""
        value = self.values.get(atom) if isinstance(atom, Var) else None
        return isinstance(value, OpCall) and (value.op == "matmul" or any(map(self._multiplies, value.args)))

    def _is_routable(self, atom: Atom, experts: Dim, tokens: Dim) -> bool:
        """Whether each row of [experts, n, h] is made of its token and the expert's weights alone, and nothing else reads it."""
        shape = _shape(atom)
        if _is_common(shape, tokens):
            return True
        value = self.values.get(atom) if isinstance(atom, Var) else None
        if not isinstance(value, OpCall) or shape is None or self.counts[atom] > 1:  # type: ignore[index]
            return False
        if value.op == "matmul":
            w = value.args[1].annotation
            own = isinstance(w, TensorType) and w.rank == 3 and w.shape[0] == experts and w.dtype in DTYPES
            return own and self._is_routable(value.args[0], experts, tokens)
        if len(shape) != 3 or not isinstance(get_operator(value.op), Elementwise | GraphElementwise):
            return False
        return all(_is_number(a) or _is_bias(_shape(a), experts) or self._is_routable(a, experts, tokens) for a in value.args)


def _shape(atom: Atom) -> tuple[Dim, ...] | None:
    return atom.annotation.shape if isinstance(atom.annotation, TensorType) else None


def _is_common(shape: tuple[Dim, ...] | None, tokens: Dim) -> bool:
    """Whether rows of tokens, [1, n, h], are the same for all experts."""
    return shape is not None and len(shape) == 3 and is_one(shape[0]) and shape[1] == tokens


def _is_number(atom: Atom) -> bool:
    """Whether an operand is of rank 0."""
    return _shape(atom) == ()


def _is_bias(shape: tuple[Dim, ...] | None, experts: Dim) -> bool:
    """Whether it is a row for all tokens of an expert, [experts, 1, h], or of all, [h]."""
    return shape is not None and (len(shape) == 1 or (len(shape) == 3 and shape[0] == experts and is_one(shape[1])))


class _Routed(OperatorWriter):
    """Writes a mixture of the chosen experts."""

    def __init__(self, r: Rewriter, read: _Read, m: _Mixture, where: str) -> None:
        super().__init__(r, where)
        self.read, self.m = read, m
        self.rows = m.k * m.tokens
        self.made: dict[Atom, Atom] = {}

    def result(self) -> Atom:
        m = self.m
        flat = self.reshape(self.r.read(m.chosen), (self.rows,))
        order = self.op("argsort", flat)
        places = self.numbers(m.experts, (m.experts, _ONE))
        counts = self.op("sum", self.op("cast", self.op("equal", flat, places), dtype="int64"), axes=(1,))
        self.ends = self.op("cumsum", counts, axis=0)
        self.expert = self.op("take", flat, order, axis=0)
        self.token = self.op("floor_divide", order, self.op("constant", value=int(m.k)))
        found = self._routed(m.found)
        back = self.op("take", found, self.op("argsort", order), axis=0)
        h = _shape(m.found)[2]  # type: ignore[index]
        values = self.reshape(self.r.read(m.values), (m.tokens, m.k, _ONE))
        return self.op("sum", self.op("mul", self.reshape(back, (m.tokens, m.k, h)), values), axes=(1,))

    def _routed(self, atom: Atom) -> Atom:
        """The rows of the chosen pairs of a token and an expert, sorted by expert."""
        if atom not in self.made:
            self.made[atom] = self._rows(atom)
        return self.made[atom]

    def _rows(self, atom: Atom) -> Atom:
        shape = _shape(atom)
        if shape is None or len(shape) < 2:
            return self.r.read(atom)
        if _is_common(shape, self.m.tokens):
            return self.op("take", self.reshape(self.r.read(atom), shape[1:]), self.token, axis=0)
        if _is_bias(shape, self.m.experts):
            return self.op("take", self.reshape(self.r.read(atom), (shape[0], shape[2])), self.expert, axis=0)
        value = self.read.values[atom]  # type: ignore[index]
        assert isinstance(value, OpCall)
        if value.op == "matmul":
            return self.op("grouped_matmul", self._routed(value.args[0]), self.r.read(value.args[1]), self.ends)
        return self.op(value.op, *map(self._routed, value.args), **dict(value.attrs))
