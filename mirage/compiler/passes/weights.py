"""What the passes share that scale constant weights: which operands are weights, who reads them, and scaled ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import sympy

from mirage.compiler.constraints import Constraints
from mirage.compiler.context import Context
from mirage.compiler.passes.lift_constants import constant_values, no_larger
from mirage.compiler.passes.rewrite import Rewriter, operator_call
from mirage.ir.dims import Dim
from mirage.ir.graph.builder import ModuleBuilder
from mirage.ir.graph.nodes import Atom, Binding, Constant, Expr, Function, Module, OpCall, Var
from mirage.ir.graph.traverse import atoms, variables
from mirage.ir.types import ELEMENTS, TensorType, is_one

#: element types whose products with a constant stay in range where those of the values did
SCALED = ("float32", "float64", "bfloat16")
#: bytes of the weights of a product, beyond which they are not scaled: the copy is kept beside them, and one more factor per
#: element is nothing beside so large a product
MOST_BYTES = 1 << 24
#: what reads some rows of a matrix, not all of it
_LOOKUPS = ("take", "gather")

#: "mul" or "div", and by what
Factor = tuple[str, Atom]


class Weights:
    """A function with what is constant in it; `parameters` are names of its parameters that never change."""

    def __init__(self, function: Function, parameters: Collection[str], functions: Mapping[str, Function]) -> None:
        given = [p for p in function.parameters if p.name in parameters]
        self._made = constant_values(function, given, functions)
        self._constant = {*given, *self._made}
        self.definitions: dict[Var, Expr] = {b.var: b.value for b in function.bindings}
        #: who reads an operand; None for the function's result
        self.readers: dict[Atom, list[Binding | None]] = defaultdict(list)
        for b in function.bindings:
            for a in atoms(b.value):
                self.readers[a].append(b)
        self.readers[function.result].append(None)

    def is_constant(self, atom: Atom) -> bool:
        return isinstance(atom, Constant) or atom in self._constant

    def behind(self, atom: Atom) -> list[Binding]:
        """The bindings that compute a constant, in order."""
        made = self._made.get(atom) if isinstance(atom, Var) else None
        return [] if made is None else [*(b for v in variables(made.value) for b in self.behind(v)), made]

    def is_weight(self, atom: Atom) -> bool:
        """Whether an operand is a constant that costs no more to read once it is scaled."""
        t = atom.annotation
        scales = isinstance(t, TensorType) and t.rank >= 2 and t.dtype in SCALED
        return scales and self.is_constant(atom) and no_larger(atom, self._made)

    def call(self, atom: Atom, *ops: str) -> OpCall | None:
        """The application of one of these operators that nothing else reads."""
        made = self.definitions.get(atom) if isinstance(atom, Var) and len(self.readers[atom]) == 1 else None
        return made if isinstance(made, OpCall) and made.op in ops else None

    def factor(self, call: OpCall) -> tuple[Atom, Factor] | None:
        """What is multiplied or divided by a constant, and that; None where nothing is."""
        if call.op == "mul":
            for x, s in (call.args, call.args[::-1]):
                if self.is_constant(s) and not self.is_constant(x):
                    return x, ("mul", s)
        elif call.op == "div" and self.is_constant(call.args[1]) and not self.is_constant(call.args[0]):
            return call.args[0], ("div", call.args[1])
        return None

    def offset(self, call: OpCall) -> tuple[Atom, Atom] | None:
        """What a constant is added to, and the constant; None where nothing is."""
        if call.op == "add":
            for x, t in (call.args, call.args[::-1]):
                if self.is_constant(t) and not self.is_constant(x):
                    return x, t
        return None

    def shift(self, call: OpCall) -> tuple[Atom, Atom] | None:
        """What a constant is added to or subtracted from, and the constant; None where nothing is."""
        if call.op == "sub" and self.is_constant(call.args[1]) and not self.is_constant(call.args[0]):
            return call.args[0], call.args[1]
        return self.offset(call)

    def size(self, product: Var) -> Dim:
        """Bytes of the weights that a product reads."""
        call = self.definitions[product]
        assert isinstance(call, OpCall)
        return sum((size_in_bytes(a) for a in call.args if self.is_constant(a)), sympy.Integer(0))

    def copied(self, changes: Mapping[Var, Hashable]) -> dict[Var, Dim]:
        """Bytes that are read beside what was, per product, where products read their weights changed in this way."""
        found: dict[Var, Dim] = {}
        for product in changes:
            call = self.definitions[product]
            assert isinstance(call, OpCall)
            roots = {self._root(a) for a in call.args if self.is_constant(a)}
            found[product] = sympy.Integer(0)
            for root in roots:
                kinds = {None if v is None else changes.get(v) for v in self._streams(root)}
                found[product] += (len(kinds) - 1) * size_in_bytes(root)
        return found

    def _root(self, atom: Atom) -> Atom:
        """What a constant is a view of."""
        while isinstance(atom, Var) and isinstance(made := self.definitions.get(atom), OpCall):
            if made.op not in ("transpose", "reshape"):
                break
            atom = made.args[0]
        return atom

    def _streams(self, root: Atom) -> Iterator[Var | None]:
        """What reads all of a constant, through views; None for what is no operator."""
        for b in self.readers[root]:
            if b is None or not isinstance(b.value, OpCall):
                yield None
            elif b.value.op in ("transpose", "reshape"):
                yield from self._streams(b.var)
            elif b.value.op not in _LOOKUPS:
                yield b.var


def in_main(
    module: Module,
    context: Context,
    fold: Callable[[Function, Collection[str], Mapping[str, Function], Constraints], Function],
) -> Module:
    """The module with its main function folded; its parameters `context.constants` are constants."""
    main = module.functions[module.main]
    builder = ModuleBuilder(module)
    builder.add(fold(main, context.constants, module.functions, context.of(main.name)))
    return builder.finish(module.main)


def along(atom: Atom, out: TensorType) -> int | None:
    """The dim of a result along which a constant varies that broadcasts to it: its only one but for those of size 1; its rank,
    where the constant is one number. None where it is something else.
    """
    t = atom.annotation
    if not isinstance(t, TensorType) or t.dtype not in (out.dtype, "scalar") or t.rank > out.rank:
        return None
    varies = [i for i, d in enumerate(t.shape, out.rank - t.rank) if not is_one(d)]
    if not varies:
        return out.rank
    return varies[0] if len(varies) == 1 and t.shape[varies[0] - out.rank] == out.shape[varies[0]] else None


def size_in_bytes(atom: Atom) -> Dim:
    t = atom.annotation
    assert isinstance(t, TensorType)
    return sympy.expand(sympy.prod(t.shape) * ELEMENTS[t.dtype].itemsize)


@dataclass(frozen=True)
class Change:
    """Products whose weights a fold changes, each with what it does to them, and the bytes of memory traffic that it saves."""

    products: Mapping[Var, Hashable]
    saved: Dim


def paying(weights: Weights, changes: Mapping[Var, Change], store: Constraints) -> set[Var]:
    """Those of some folds that read no more than they save, together: a copy of shared weights may be one too many; and whose
    weights are not proved to be larger than `MOST_BYTES`.
    """
    left = {v: c for v, c in changes.items() if not any(store.at_most(MOST_BYTES + 1, weights.size(p)) for p in c.products)}
    while True:
        copied = weights.copied({p: key for c in left.values() for p, key in c.products.items()})
        lost = {
            v
            for v, c in left.items()
            if any(copied[p] != 0 for p in c.products)
            and not store.at_most(sum((copied[p] for p in c.products), sympy.Integer(0)), c.saved)
        }
        if not lost:
            return set(left)
        left = {v: c for v, c in left.items() if v not in lost}


class Scaling:
    """Scaled constants of a function that a pass writes again, each of which is made once."""

    def __init__(self, weights: Weights, rewriter: Rewriter) -> None:
        self._weights = weights
        self._rewriter = rewriter
        self._made: dict[Hashable, Atom] = {}

    def scaled(self, w: Atom, factors: Iterable[Factor], axis: int) -> Atom:
        """A constant times factors along one of its dims, counted from its end; those of one number have none."""
        for factor in factors:
            w = self._once((w, factor, axis), w, factor, axis)
        return w

    def _once(self, key: Hashable, w: Atom, factor: Factor, axis: int) -> Atom:
        if key not in self._made:
            self._made[key] = self._scaled(w, factor, axis)
        return self._made[key]

    def _scaled(self, w: Atom, factor: Factor, axis: int) -> Atom:
        emit, read, t = self._rewriter.emit, self._rewriter.read, w.annotation
        assert isinstance(t, TensorType)
        made = self._rewriter.definitions.get(w) if isinstance(w, Var) else None
        if isinstance(made, OpCall) and made.op == "transpose":
            # kernels and libraries read a transposed one as it is
            perm = dict(made.attrs)["perm"]
            inner = made.args[0]
            below = self._once((inner, factor, perm[axis] - t.rank), inner, factor, perm[axis] - t.rank)
            return emit(OpCall("transpose", (below,), made.attrs))
        op, s = factor
        return emit(operator_call(op, read(w), self.spread(s, axis)), name="scaled")

    def spread(self, s: Atom, axis: int) -> Atom:
        """A constant that varies along one dim, as one that broadcasts along this dim, counted from the end."""
        t = s.annotation
        assert isinstance(t, TensorType)
        shape = next(((d, *[1] * (-axis - 1)) for d in t.shape if not is_one(d)), ())
        read = self._rewriter.read(s)
        return read if shape == t.shape else self._rewriter.emit(operator_call("reshape", read, shape=shape))
