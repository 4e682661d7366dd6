"""Gradients of functions of a module, by reverse mode (van Merrienboer et al., "Automatic differentiation in ML", section 2).

A function becomes another one, which computes what the first does and then goes back over its bindings: from the cotangents
of its results to those of its parameters. The cotangents of a value that is used often are added up before its own binding is
gone back over.

- a call, and the branches of a condition, get a backward function each, which computes the function again and goes back over it;
- a loop keeps the carried values of all rounds, stacked, and a second loop goes back over the rounds, last one first.

The result is an ordinary module. What nothing uses is left to `mirage.compiler.passes.dead_code`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mirage.errors import GradientError, MirageError
from mirage.ir.annotations import Annotation, TupleType
from mirage.ir.expand import operator_gradient
from mirage.ir.gradient import Backward, Emitter
from mirage.ir.graph.builder import FunctionBuilder
from mirage.ir.graph.cotangents import (
    Tree,
    float_leaves,
    hides,
    is_float,
    known_type,
    symbols_of_function,
    tensor_type,
    unflattened,
)
from mirage.ir.graph.deduce import located
from mirage.ir.graph.effects import is_pure
from mirage.ir.graph.gradient_loops import going_back, keeping
from mirage.ir.graph.nodes import (
    Atom,
    Binding,
    Expr,
    Function,
    FunctionCall,
    If,
    Loop,
    MakeTuple,
    MatchCast,
    OpCall,
    TupleItem,
    Var,
)
from mirage.ir.graph.traverse import rename, variables
from mirage.ir.operator import REGISTRY, get_operator
from mirage.ir.operators.numeric import STOP_GRADIENT
from mirage.ir.types import TensorType


@dataclass
class Differentiation:
    """The gradients of functions of one module: `functions` are those of the module and grow, `reserve` gives new names."""

    functions: dict[str, Function]
    reserve: Callable[[str], str]
    _known: dict[tuple[str, tuple[bool, ...], tuple[bool, ...]], str] = field(default_factory=dict)
    _active: set[str] = field(default_factory=set)

    def gradient(self, f: Function, wrt: Sequence[int], name: str, *, seeded: bool, value: bool) -> Function:
        """A function with the gradients of `f` by the parameters at these positions: one by itself, several as a tuple.

        The result of `f` has to be a scalar, or, where `seeded`, its cotangent is another parameter, behind those of `f`. With
        `value`, the function returns a tuple of what `f` returns and the gradients. Raises GradientError, and names the
        user's line, where there are none.
        """
        wanted = [k in wrt for k in range(len(f.parameters))]
        r = _Reverse(self, f, name, wanted, cotangent=f.returns if seeded else None)
        if seeded:
            seed: Tree = r.tree_of(r.seed)
        else:
            assert isinstance(f.returns, TensorType)
            seed = r.emitter.full((), 1, f.returns.dtype)
        r.reverse(seed)
        found = [r.packed(r.parameters[k]) for k in wrt]
        gradients = found[0] if len(found) == 1 else r.b.emit(MakeTuple(tuple(found)))
        result = r.b.emit(MakeTuple((r.result, gradients))) if value else gradients
        return r.b.finish(result, dims=f.dims, attrs=f.attrs)

    def backward(self, name: str, wanted: Sequence[bool], given: Sequence[bool]) -> str:
        """The backward function of a function: of its arguments, and the cotangents of the leaves of its result that are `given`.

        It returns the cotangents of all leaves of the `wanted` parameters: one by itself, several as a tuple.
        """
        key = name, tuple(wanted), tuple(given)
        if key not in self._known:
            if name in self._active:
                raise GradientError(f"{name}: it calls itself, and a recursion has no gradient; use mirage.loop")
            self._active.add(name)
            f = self.functions[name]
            r = _Reverse(self, f, self.reserve(f"{name}_backward"), wanted)
            leaves = zip(float_leaves(f.returns), given, strict=True)
            seeds = [r.b.fresh_parameter("g", leaf) if has else None for leaf, has in leaves]
            r.reverse(unflattened(f.returns, iter(seeds)))
            found = [g for p, has in zip(r.parameters, wanted, strict=True) if has for g in r.leaves(p)]
            result = found[0] if len(found) == 1 else r.b.emit(MakeTuple(tuple(found)))
            self.functions[r.b.name] = r.b.finish(result, dims=f.dims)
            self._known[key] = r.b.name
            self._active.remove(name)
        return self._known[key]


def _at(b: Binding, problem: str) -> MirageError:
    return located(GradientError(f"{b.var.name}: {problem}"), b.where)


@dataclass(frozen=True)
class _Kept:
    """What a loop has kept for its way back: the stacks of its carried values, and the number of its last round."""

    stacks: tuple[Atom, ...]
    last: Atom


class _Reverse:
    """One function, copied, and then gone back over.

    The copy's parameters are `parameters`, and behind them a cotangent, `seed`, where its annotation is given. Its result is
    `result`.
    """

    def __init__(
        self,
        module: Differentiation,
        f: Function,
        name: str,
        wanted: Sequence[bool],
        cotangent: Annotation | None = None,
    ) -> None:
        self.module = module
        self.b = FunctionBuilder(name, module.functions)
        self.b.names |= symbols_of_function(f)
        self.emitter = Emitter(self._operator, known_type)
        #: the line of the binding that is gone back over
        self.where = ""
        self._scalars: dict[object, Var] = {}
        self._cotangents: dict[Var, list[Tree]] = {}
        self._kept: dict[Var, _Kept] = {}
        new: dict[Var, Atom] = {}
        self.parameters = [self._parameter(p) for p in f.parameters]
        if cotangent is not None:
            self.seed = self.b.fresh_parameter("cotangent", cotangent)
        new.update(zip(f.parameters, self.parameters, strict=True))
        #: the variables on which a gradient may depend
        self.active = {p for p, has in zip(self.parameters, wanted, strict=True) if has}
        self.bindings = [self._forward(b, new) for b in f.bindings]
        self.result = new[f.result] if isinstance(f.result, Var) else f.result

    # the function itself

    def _parameter(self, p: Var) -> Var:
        """The parameter under its own name, unless a dim or the cotangent is called so."""
        free = p.name not in self.b.names
        return self.b.parameter(p.name, p.annotation) if free else self.b.fresh_parameter(p.name, p.annotation)

    def _forward(self, b: Binding, new: dict[Var, Atom]) -> Binding:
        """Copy a binding; returns it as it has to be gone back over."""
        value = rename(b, new).value
        reads = any(v in self.active for v in variables(value))
        if reads and hides(b.var.annotation):
            raise _at(
                b,
                f"is {b.var.annotation}, of which there is no gradient; use tensors and tuples, or end gradients before it with "
                "mirage.stop_gradient",
            )
        active = reads and bool(float_leaves(b.var.annotation))
        if isinstance(value, OpCall) and value.op == STOP_GRADIENT.name:
            active = False
        if not is_pure(value, self.b.functions):
            raise _at(
                b,
                "has effects, which cannot be gone back over; compute a new value instead, or call it outside of what is "
                "differentiated",
            )
        var = Var(self.b.fresh(b.var.name), b.var.annotation)
        new[b.var] = var
        if isinstance(value, Loop) and active:
            self.where = b.where
            with_line = self._keep(value, var)
        else:
            with_line = Binding(var, value, b.where)
        self.b.bind(with_line)
        if active:
            self.active.add(var)
        return Binding(var, value, b.where)

    # what rules emit

    def _operator(self, name: str, operands: Sequence[Atom], attrs: Any) -> Var:
        if not isinstance(attrs, dict):
            if name not in REGISTRY:
                raise GradientError(
                    f"scalar function {name!r}: a gradient needs its values, and no operator of that name computes them; "
                    f"register one: mirage.elementwise({name!r}, lambda al, x: al.function(fn, x))"
                )
            attrs = dict(zip((a.name for a in get_operator(name).attributes), attrs, strict=True))
        checked = tuple(get_operator(name).check_attrs(attrs).items())
        if operands:
            return self.emit(OpCall(name, tuple(operands), checked))
        if (name, checked) not in self._scalars:
            self._scalars[name, checked] = self.emit(OpCall(name, (), checked))
        return self._scalars[name, checked]

    def emit(self, value: Expr) -> Var:
        return self.b.emit(value, where=self.where)

    def items(self, value: Atom, count: int) -> list[Atom]:
        """The values of a result that is one by itself, or several as a tuple."""
        return [value] if count == 1 else [self.emit(TupleItem((value,), k)) for k in range(count)]

    def tree_of(self, value: Atom) -> Tree:
        """A value that is a cotangent as a tree."""
        if isinstance(value.annotation, TupleType):
            return [self.tree_of(self.emit(TupleItem((value,), k))) for k in range(len(value.annotation.fields))]
        return value

    # cotangents

    def add(self, to: Atom, g: Tree) -> None:
        """Note a cotangent of a value, if its gradient is asked for."""
        if isinstance(to, Var) and to in self.active and g is not None:
            self._cotangents.setdefault(to, []).append(g)

    def total(self, var: Var) -> Tree:
        """The sum of a value's cotangents."""
        found: Tree = None
        for g in self._cotangents.get(var, ()):
            found = self._sum(found, g)
        if found is not None:
            self._cotangents[var] = [found]
        return found

    def _sum(self, x: Tree, y: Tree) -> Tree:
        if x is None or y is None:
            return y if x is None else x
        if isinstance(x, list) and isinstance(y, list):
            return [self._sum(a, c) for a, c in zip(x, y, strict=True)]
        added: Atom = self.emitter.add(x, y)
        return added

    def flattened(self, g: Tree, annotation: Annotation) -> list[Atom | None]:
        """One cotangent with all its elements for each floating-point leaf of a value."""
        if isinstance(annotation, TupleType):
            fields = g if isinstance(g, list) else [None] * len(annotation.fields)
            return [leaf for t, f in zip(fields, annotation.fields, strict=True) for leaf in self.flattened(t, f)]
        if not is_float(annotation):
            return []
        assert not isinstance(g, list)
        return [self.emitter.spread(g, annotation.shape) if g is not None and isinstance(annotation, TensorType) else g]

    def leaves(self, var: Var) -> list[Atom]:
        """The cotangents of all leaves of a value; zeros where there is none."""
        annotations = float_leaves(var.annotation)
        return [
            self._zeros(a, var) if g is None else g
            for g, a in zip(self.flattened(self.total(var), var.annotation), annotations, strict=True)
        ]

    def packed(self, var: Var) -> Atom:
        """The cotangent of a value as a value of its kind."""
        return self._pack(var.annotation, iter(self.leaves(var)))

    def _pack(self, annotation: Annotation, leaves: Iterator[Atom]) -> Atom:
        if isinstance(annotation, TupleType):
            return self.emit(MakeTuple(tuple(self._pack(f, leaves) for f in annotation.fields)))
        return next(leaves)

    def _zeros(self, annotation: Annotation, what: Var) -> Atom:
        if not isinstance(annotation, TensorType):
            raise GradientError(
                f"{self.b.name}: the shape of {what} is only known at run time; name its dims with mirage.match_cast"
            )
        zeros: Atom = self.emitter.zeros(annotation)
        return zeros

    # back

    def reverse(self, seed: Tree) -> None:
        """Go back over all bindings, from the cotangent of the result."""
        self.add(self.result, seed)
        for b in reversed(self.bindings):
            if b.var not in self._cotangents:
                continue
            self.where = b.where
            try:
                self._back(b, self.total(b.var))
            except MirageError as e:
                raise located(e, b.where) from None

    def _back(self, b: Binding, g: Tree) -> None:
        match b.value:
            case Var():
                self.add(b.value, g)
            case OpCall():
                self._back_operator(b.value, b.var, g)
            case MakeTuple(args):
                for a, part in zip(args, g if isinstance(g, list) else [None] * len(args), strict=True):
                    self.add(a, part)
            case TupleItem((value,), index):
                assert isinstance(value.annotation, TupleType)
                self.add(value, [g if k == index else None for k in range(len(value.annotation.fields))])
            case MatchCast((value,)):
                self.add(value, self._back_cast(value, b.var, g))
            case FunctionCall(name, args, dims):
                self._back_call(lambda given, f: FunctionCall(f, given, dims), [name], args, b.var, g)
            case If((condition, *args), then, orelse, dims):
                self._back_call(lambda given, f, h: If((condition, *given), f, h, dims), [then, orelse], args, b.var, g)
            case Loop():
                self._back_loop(b.value, self._kept[b.var], b.var, g)
            case _:
                raise GradientError(
                    f"{b.var.name}: a {type(b.value).__name__} has no gradient; write it with operators, or end gradients before "
                    "it with mirage.stop_gradient"
                )

    def _back_operator(self, call: OpCall, var: Var, g: Tree) -> None:
        out: Any = var
        if isinstance(var.annotation, TupleType):
            out = self.items(var, len(var.annotation.fields))
        wanted = [a in self.active for a in call.args]
        step = Backward(self.emitter, call.args, out, dict(call.attrs), g, wanted)
        for a, found in zip(call.args, operator_gradient(get_operator(call.op), step), strict=True):
            self.add(a, found)

    def _back_cast(self, value: Atom, var: Var, g: Tree) -> Tree:
        """The cotangent of what was cast, under its own dims."""
        if isinstance(g, list):
            parts = self.items(value, len(g)) if len(g) > 1 else [self.emit(TupleItem((value,), 0))]
            fields = self.items(var, len(g)) if len(g) > 1 else [self.emit(TupleItem((var,), 0))]
            return [self._back_cast(p, f, t) for p, f, t in zip(parts, fields, g, strict=True)]  # type: ignore[arg-type]
        if g is None:
            return None
        (whole,) = self.flattened(g, var.annotation)
        assert whole is not None
        known = isinstance(value.annotation, TensorType) and value.annotation != whole.annotation
        return self.emit(MatchCast((whole,), value.annotation)) if known else whole

    def _back_call(self, call: Callable[..., Expr], names: list[str], args: Sequence[Atom], var: Var, g: Tree) -> None:
        """Go back over a call of one of several functions, which `call` makes of arguments and names."""
        wanted = [a in self.active for a in args]
        cotangents = self.flattened(g, var.annotation)
        given = [c is not None for c in cotangents]
        backward = [self.module.backward(name, wanted, given) for name in names]
        operands = (*args, *(c for c in cotangents if c is not None))
        counts = [len(float_leaves(a.annotation)) if has else 0 for a, has in zip(args, wanted, strict=True)]
        result = self.emit(call(operands, *backward))
        found = iter(self.items(result, sum(counts)))
        for a, count in zip(args, counts, strict=True):
            if count:
                self.add(a, unflattened(a.annotation, found))

    # loops

    def _keep(self, loop: Loop, var: Var) -> Binding:
        """The loop that keeps its carried values as well; returns the binding of its result to the variable."""
        body = self.module.functions[loop.body]
        counted = loop.count is None
        carried, fixed = _operands(loop)
        size = loop.bound if loop.count is None else loop.count
        assert size is not None
        results = var.annotation.fields if loop.carried > 1 else (var.annotation,)  # type: ignore[union-attr]
        stacks = [
            self.emitter.full((size, *t.shape), 0, t.dtype)
            for t in (tensor_type(Var(f"carried value {k}", a), body) for k, a in enumerate(results))
        ]
        kept = Loop(
            keeping(self.module.functions, self.module.reserve(f"{body.name}_kept"), body, loop.carried),
            (*loop.args[:counted], *carried, *stacks, *fixed),
            2 * loop.carried, loop.count, loop.bound, loop.dims,
        )  # fmt: skip
        fields = self.items(self.emit(kept), 2 * loop.carried)
        count = loop.args[0] if loop.count is None else self.emitter.op("dim_value", dim=loop.count)
        last = self.emitter.sub(self.emitter.op("cast", count, dtype="int64"), 1)
        self._kept[var] = _Kept(tuple(fields[loop.carried :]), last)
        after = fields[: loop.carried]
        return Binding(var, after[0] if loop.carried == 1 else MakeTuple(tuple(after)), self.where)

    def _back_loop(self, loop: Loop, kept: _Kept, var: Var, g: Tree) -> None:
        body = self.module.functions[loop.body]
        carried, fixed = _operands(loop)
        moving = [is_float(p.annotation) for p in body.parameters[1 : 1 + loop.carried]]
        wanted = [False, *moving, *(a in self.active for a in fixed)]
        counts = [len(float_leaves(p.annotation)) if w else 0 for p, w in zip(body.parameters, wanted, strict=True)]
        own, others = sum(moving), sum(counts[1 + loop.carried :])
        leaves = [
            self._zeros(a, var) if c is None else c
            for c, a in zip(self.flattened(g, var.annotation), float_leaves(var.annotation), strict=True)
        ]
        leaves += [
            self._zeros(leaf, var) for a, w in zip(fixed, wanted[1 + loop.carried :], strict=True) if w
            for leaf in float_leaves(a.annotation)
        ]  # fmt: skip
        back = going_back(
            self.module.functions,
            self.module.reserve(f"{body.name}_back"),
            body,
            loop.carried,
            wanted,
            self.module.backward(body.name, wanted, [True] * own),
        )
        call = Loop(
            back, (*loop.args[: loop.count is None], *leaves, kept.last, *kept.stacks, *fixed), own + others,
            loop.count, loop.bound, loop.dims,
        )  # fmt: skip
        found = iter(self.items(self.emit(call), own + others))
        for a, count in zip((*carried, *fixed), counts[1:], strict=True):
            if count:
                self.add(a, unflattened(a.annotation, found))


def _operands(loop: Loop) -> tuple[tuple[Atom, ...], tuple[Atom, ...]]:
    """The carried and the invariant operands of a loop."""
    given = loop.args[loop.count is None :]
    return given[: loop.carried], given[loop.carried :]
