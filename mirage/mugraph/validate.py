"""The rules of a muGraph (Mirage, section 2), checked before a graph is executed, proved, printed or stored.

Every value is recomputed from the operands: the axes that it has, and the axes along which it is a *pending*
sum, that is, a sum over only the part that one iteration (or one block) sees. A graph is valid if its result
is the same for every choice of tile and split sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce as fold
from typing import NoReturn

import sympy

from mirage.errors import AttributeValueError, DTypeError, GraphError, UnknownOperator
from mirage.ir.axes import AxisDims, AxisInput
from mirage.ir.dims import Dim, is_polynomial
from mirage.ir.moves import moved_type, moves_text
from mirage.ir.operator import PRODUCTS, REDUCTIONS, Elementwise, Level, get_operator, reduced_axes
from mirage.ir.types import WIDENED, TensorType, check_float
from mirage.mugraph.graph import Graph, MuGraph, Node, Role, partial_axis
from mirage.mugraph.linearity import LINEAR, Part

_BELOW = {Level.KERNEL: Level.BLOCK, Level.BLOCK: Level.THREAD}
_NONE: frozenset[str] = frozenset()


def _check_arguments(graph: MuGraph) -> None:
    """Inputs that read one argument must have its shape, or that of what moving its elements gives."""
    shapes: dict[str, tuple[AxisInput, list[Dim]]] = {}
    for x in graph.inputs:
        shape = [sympy.expand(sympy.prod(graph.axes[a] for a in d)) for d in x.dims]
        first, whole = shapes.setdefault(x.argument, (x, shape))
        if first.moved:
            raise GraphError(
                f"muGraph {graph.name}: input {first.name} moves elements of argument {x.argument}, which no input before it has "
                "as it is; declare that one first"
            )
        if shape != list(moved_type(x.moved, TensorType(tuple(whole), graph.dtype)).shape):
            raise GraphError(
                f"muGraph {graph.name}: inputs {first.name} and {x.name} read the argument {x.argument} as "
                f"{_text(first.dims)} and {moves_text(x.moved)}{_text(x.dims)}, which differ in size; give them dims of equal "
                "sizes"
            )


def _check_stored(graph: MuGraph) -> None:
    """Inputs are of the graph's element type, or of others that are widened to it."""
    stored = sorted({x.dtype for x in graph.inputs} - {""})
    if any(t not in WIDENED or graph.dtype != "float32" for t in stored):
        raise DTypeError(
            f"muGraph {graph.name}: inputs are stored in {', '.join(stored)}, and it computes {graph.dtype}; only "
            f"{', '.join(WIDENED)} are widened, to float32"
        )
    if len({(x.argument, x.dtype) for x in graph.inputs}) > len({x.argument for x in graph.inputs}):
        raise DTypeError(f"muGraph {graph.name}: inputs that read one argument differ in what it is stored in")


@dataclass(frozen=True, slots=True)
class _Value:
    """The axes of a tensor, and those along which it is a partial sum (always so along `a.grid`)."""

    axes: frozenset[str]
    pending: frozenset[str] = _NONE


def validate(graph: MuGraph) -> None:
    """Raises GraphError, naming kernel, node and axis, where a rule is broken; DTypeError for its dtype."""
    check_float(graph.dtype, f"muGraph {graph.name}: its element type")
    _check_stored(graph)
    names = [x.name for x in graph.inputs]
    if len(set(names)) != len(names):
        raise GraphError(f"muGraph {graph.name}: inputs {', '.join(names)}: a name is used twice; rename one")
    for name, size in graph.axes.items():
        if not name.isidentifier():
            raise GraphError(
                f"muGraph {graph.name}: axis name {name!r} is not an identifier; use letters, digits and _"
            )
        if not is_polynomial(size):
            raise GraphError(
                f"muGraph {graph.name}: the size of axis {name}, {size}, is not a sum of products of dims; "
                "give it a dim name of its own"
            )
    for what, dims in [
        *((f"input {x.name}", x.dims) for x in graph.inputs),
        *((f"output {k}", o.dims) for k, o in enumerate(graph.outputs)),
    ]:
        _check_distinct(f"muGraph {graph.name}: {what}", dims)
        if unknown := {a for d in dims for a in d} - graph.axes.keys():
            raise GraphError(
                f"muGraph {graph.name}: {what} has unknown axis {min(unknown)}; give its size in `axes`"
            )
    _check_arguments(graph)
    if graph.kernel.level is not Level.KERNEL:
        raise GraphError(
            f"muGraph {graph.name}: its top graph is a {graph.kernel.level.value} graph, not a kernel graph"
        )
    check = _GraphCheck(graph, graph.kernel, [_Value(frozenset(x.axes)) for x in graph.inputs], "")
    values = check.run()
    if len(values) != len(graph.outputs):
        raise GraphError(
            f"muGraph {graph.name}: {len(values)} kernel-level outputs for {len(graph.outputs)} results"
        )
    for k, (value, out) in enumerate(zip(values, graph.outputs, strict=True)):
        own = {a for d in out.dims for a in d}
        if extra := value.axes - own:
            a = min(extra)
            hint = "sum the partial results in a later kernel" if a in value.pending else "reduce it"
            raise GraphError(
                f"muGraph {graph.name}: output {k} has axis {a}, the result only {sorted(own)}; {hint}"
            )


def _check_distinct(where: str, dims: AxisDims) -> None:
    flat = [a for d in dims for a in d]
    for a in flat:
        if flat.count(a) > 1:
            raise GraphError(f"{where}: axis {a} occurs twice in one tensor; rename one of the two")


class _GraphCheck:
    """Checks one graph for operands of the given axes.

    `open_axes` are the loop axes of the surrounding graph during an iteration: reductions over them stay
    pending. `divided` are the axes of which the surrounding graphs show only a part.
    """

    def __init__(
        self,
        program: MuGraph,
        graph: Graph,
        operands: Sequence[_Value],
        path: str,
        open_axes: frozenset[str] = _NONE,
        divided: frozenset[str] = _NONE,
    ) -> None:
        self.program = program
        self.graph = graph
        self.operands = tuple(operands)
        self.path = path
        self.open_axes = open_axes
        self.divided = divided
        self.loop = frozenset(graph.loop)
        self.values: list[tuple[_Value, ...]] = []

    def fail(self, i: int | None, message: str) -> NoReturn:
        node = "" if i is None else f"node {i} ({self.graph.nodes[i].op}): "
        raise GraphError(f"muGraph {self.program.name}, {self.path}{node}{message}")

    def run(self) -> list[_Value]:
        """The outputs' values, as the surrounding graph sees them."""
        for i, n in enumerate(self.graph.nodes):
            self.check_form(i, n)
        self.check_inputs()
        self.check_roles()
        for i, n in enumerate(self.graph.nodes):
            found = self.node(i, n)
            if len(found) != len(n.dims):
                self.fail(i, f"dims for {len(n.dims)} outputs, but it has {len(found)}")
            for k, value in enumerate(found):
                if frozenset(n.axes(k)) != value.axes:
                    has, needs = sorted(n.axes(k)), sorted(value.axes)
                    self.fail(
                        i, f"output {k} has axes {has}, but its operands make {needs}; set its dims to those"
                    )
            self.values.append(found)
        return [self.output(k) for k in range(len(self.graph.outputs))]

    # Form: what can be said of a node alone.

    def check_form(self, i: int, n: Node) -> None:
        for r in n.operands:
            self.check_ref(i, r.node, r.out, i)
        if not n.dims or (len(n.dims) > 1 and n.op != "graph"):
            self.fail(
                i,
                f"dims for {len(n.dims)} outputs; only a graph-defined operator has more than one, and "
                f"none has 0",
            )
        for dims in n.dims:
            _check_distinct(f"muGraph {self.program.name}, {self.path}node {i} ({n.op})", dims)
        if n.graph is not None and n.op != "graph":
            self.fail(i, "has a graph; only an operator 'graph' is defined by one")
        if n.reduce and n.op not in REDUCTIONS:
            self.fail(i, f"reduces {', '.join(n.reduce)}; only {', '.join(sorted(REDUCTIONS))} reduce axes")
        if (n.joined is None) == (n.op == "concat"):
            self.fail(i, "`joined` names the axes of a concat; a concat needs it and nothing else has it")
        match n.op:
            case "input":
                self.check_attrs(i, n, {"index"})
                self.check_arity(i, n, 0)
                k = n.attr["index"]
                if type(k) is not int or not 0 <= k < len(self.operands):
                    self.fail(i, f"reads input {k!r}, but the graph has {len(self.operands)}; count from 0")
            case "accumulator":
                self.check_attrs(i, n, {"mode", "axis"})
                self.check_arity(i, n, 1)
            case "graph":
                self.check_attrs(i, n, set())
                self.check_child(i, n)
            case _:
                self.check_operator(i, n)

    def check_ref(self, i: int | None, node: int, out: int, before: int) -> None:
        if not 0 <= node < before:
            self.fail(i, f"uses node {node}, which does not come before it; put nodes in topological order")
        if not 0 <= out < len(self.graph.nodes[node].dims):
            self.fail(i, f"uses output {out} of node {node}, which has {len(self.graph.nodes[node].dims)}")

    def check_attrs(self, i: int, n: Node, names: set[str]) -> None:
        if len(n.attrs) != len(names) or {k for k, _ in n.attrs} != names:
            self.fail(i, f"attributes {[k for k, _ in n.attrs]}; it takes {sorted(names) or 'none'}")

    def check_arity(self, i: int, n: Node, arity: int) -> None:
        if len(n.operands) != arity:
            self.fail(i, f"takes {arity} operands, got {len(n.operands)}")

    def check_child(self, i: int, n: Node) -> None:
        if n.graph is None:
            self.fail(i, "has no graph that defines it")
        want = _BELOW.get(self.graph.level)
        if want is None:
            self.fail(i, "a thread graph is the lowest level; use predefined operators only")
        if n.graph.level is not want:
            self.fail(
                i,
                f"a {self.graph.level.value} graph holds {want.value} graphs, not {n.graph.level.value} "
                f"graphs",
            )
        if want is Level.THREAD and len(n.graph.outputs) != 1:
            self.fail(
                i,
                f"a thread graph has one output, this one {len(n.graph.outputs)}; make one graph per output",
            )

    def check_operator(self, i: int, n: Node) -> None:
        try:
            op = get_operator(n.op)
        except UnknownOperator as e:
            self.fail(i, str(e))
        if self.graph.level not in op.levels:
            self.fail(i, f"is not allowed in a {self.graph.level.value} graph")
        if not op.min_arity <= len(n.operands) <= op.max_arity:
            self.fail(i, f"takes {op.min_arity} to {op.max_arity} operands, got {len(n.operands)}")
        if n.op in REDUCTIONS or n.op == "concat":
            self.check_attrs(i, n, set())
            if n.op != "concat" and not n.reduce:
                self.fail(i, "reduces no axis; name at least one, or use mul")
        elif not isinstance(op, Elementwise):
            self.fail(i, "is not an operator over named axes; expand the program and lower it to axes first")
        elif n.attrs or op.attributes:
            try:
                canonical = op.check_attrs(n.attr)
            except AttributeValueError as e:
                self.fail(i, str(e))
            if canonical != n.attr or any(type(canonical[k]) is not type(v) for k, v in n.attrs):
                self.fail(i, f"attributes {n.attr} are not in canonical form {canonical}")

    # The graph's properties.

    def check_inputs(self) -> None:
        read = [n.attr["index"] for n in self.graph.nodes if n.op == "input"]
        for k in read:
            if read.count(k) > 1:
                self.fail(None, f"input {k} is read by two nodes; read it once")
        # A program may have inputs that it does not need; an operand of a kernel has to be used.
        if self.graph.level is not Level.KERNEL and len(read) != len(self.operands):
            missing = min(set(range(len(self.operands))) - set(read))
            self.fail(None, f"no node reads operand {missing}; add an input node or drop the operand")

    def check_roles(self) -> None:
        if self.graph.level is Level.KERNEL:
            if self.graph.roles:
                self.fail(None, "a kernel graph has no roles; give them to its block graphs")
            return
        used = {a for n in self.graph.nodes for d in n.dims for g in d for a in g}
        for n in self.graph.nodes:
            used.update(n.reduce)
            if n.joined is not None:
                used.update((n.joined[0], *n.joined[1]))
        if len(self.graph.role) != len(self.graph.roles):
            self.fail(None, f"an axis has two roles in {[a for a, _ in self.graph.roles]}; give it one")
        if missing := used - self.graph.role.keys():
            self.fail(None, f"axis {min(missing)} has no role; make it parallel, whole, loop or split")
        if extra := self.graph.role.keys() - used:
            self.fail(None, f"axis {min(extra)} has a role but occurs in no tensor; drop it")
        for a, role in self.graph.roles:
            if role is Role.SPLIT and self.graph.level is Level.THREAD:
                self.fail(
                    None,
                    f"axis {a} is split over threads; only blocks can leave partial results to a later "
                    f"kernel",
                )

    # Values.

    def node(self, i: int, n: Node) -> tuple[_Value, ...]:
        args = [self.values[r.node][r.out] for r in n.operands]
        varying, after = self.graph.in_loop, self.graph.after_loop
        if i in varying and any(r.node in after for r in n.operands):
            late = next(r.node for r in n.operands if r.node in after)
            now = next(r.node for r in n.operands if r.node in varying)
            self.fail(
                i,
                f"combines node {now}, which changes with the loop over {', '.join(self.graph.loop)}, "
                f"with node {late}, "
                "which is computed after the loop; accumulate the former first",
            )
        match n.op:
            case "input":
                return (self.input(i, n),)
            case "accumulator":
                return (self.accumulator(i, n, args[0]),)
            case "graph":
                return self.child(i, n, args)
            case "concat":
                return (self.concat(i, n, args),)
        if n.op in REDUCTIONS:
            return (self.reduction(i, n, args),)
        return (_Value(_union(x.axes for x in args), self.pending(i, n, args)),)

    def pending(
        self, i: int, n: Node, args: Sequence[_Value], still: frozenset[str] = _NONE
    ) -> frozenset[str]:
        """The pending axes of an operator over pending operands; fails where it is not linear in them.

        `still` are axes that it sums itself, of which it sees only a part.
        """
        axes = _union(x.pending for x in args) | still
        if not axes:
            return axes
        op = get_operator(n.op)
        if n.op == "max":
            a = min(axes)
            how = "it sees only a part of it: make its role whole" if a in still else "sum over it first"
            self.fail(i, f"takes the maximum over axis {a}, or of a partial sum over it; {how}")
        complete = frozenset(n.reduce) - still
        products = PRODUCTS.get(n.op, ((0,),))
        summed = reduced_axes(n.op, [x.axes for x in args], n.reduce)
        for a in axes:
            parts = [
                Part.PARTIAL if a in x.pending else Part.OTHER if a in x.axes else Part.FIXED for x in args
            ]
            if isinstance(op, Elementwise):
                result = op.apply(LINEAR, parts, n.attr)
            elif n.op == "concat":
                result = parts[0] if len(set(parts)) == 1 else Part.OTHER
            else:
                terms = [
                    _summed([parts[k] for k in factors], a in over, a in still)
                    for factors, over in zip(products, summed, strict=True)
                ]
                result = fold(LINEAR.add, terms)
            if result is Part.OTHER or (result is Part.FIXED and a not in complete):
                how = (
                    "sum over it first"
                    if a in _union(x.axes for x in args)
                    else "accumulate it over the loop first"
                )
                self.fail(
                    i,
                    f"acts on a partial sum over axis {a} and is not linear in it, so tile sizes would "
                    f"show; {how}",
                )
        return axes - complete

    def input(self, i: int, n: Node) -> _Value:
        k: int = n.attr["index"]
        if self.graph.level is Level.KERNEL and n.dims[0] != self.program.inputs[k].dims:
            want = self.program.inputs[k].dims
            self.fail(
                i,
                f"dims {_text(n.dims[0])} differ from those of input {self.program.inputs[k].name}, "
                f"{_text(want)}",
            )
        return self.operands[k]

    def accumulator(self, i: int, n: Node, x: _Value) -> _Value:
        axis, mode = n.attr["axis"], n.attr["mode"]
        if axis not in self.loop:
            self.fail(
                i,
                f"accumulates over axis {axis}, which is no loop axis "
                f"({', '.join(self.graph.loop) or 'none'})",
            )
        if n.operands[0].node in self.graph.after_loop:
            self.fail(
                i,
                f"accumulates node {n.operands[0].node}, which is computed after the loop over {axis}; "
                f"use it as is",
            )
        if mode not in ("sum", "concat"):
            self.fail(i, f"mode {mode!r}; use 'sum' or 'concat'")
        if mode == "concat" and axis not in x.axes:
            self.fail(
                i,
                f"axis {axis} is not in the operand {sorted(x.axes)}, so nothing can be concatenated along it",
            )
        for a in self.graph.summed_loops(i):
            if a in x.axes:
                self.fail(
                    i,
                    f"adds up tiles that still have the loop axis {a}; reduce it in the loop or concatenate "
                    f"along it",
                )
            if a not in x.pending:
                self.fail(
                    i,
                    f"its operand is not a sum over the loop axis {a}, so the result would count iterations; "
                    "compute it outside the loop",
                )
        done = {a for a in self.loop if self.graph.role[a] is Role.LOOP} - self.open_axes
        return _Value(x.axes, x.pending - done)

    def reduction(self, i: int, n: Node, args: Sequence[_Value]) -> _Value:
        axes = _union(x.axes for x in args)
        if len(set(n.reduce)) != len(n.reduce):
            self.fail(i, f"reduces an axis twice: {', '.join(n.reduce)}")
        for a in n.reduce:
            if a not in axes:
                self.fail(i, f"reduces axis {a}, which its operands {sorted(axes)} do not have")
            if self.graph.role.get(a) is Role.PARALLEL:
                self.fail(
                    i,
                    f"reduces axis {a}, which is parallel: a block sees only its part; make it split, "
                    f"loop or whole",
                )
        if len(PRODUCTS.get(n.op, ())) > 1:
            self.check_products(i, n, args)
        reduce = frozenset(n.reduce)
        still = reduce & (self.open_axes | self.looped(i))
        return _Value(axes - reduce, self.pending(i, n, args, still))

    def check_products(self, i: int, n: Node, args: Sequence[_Value]) -> None:
        """Several products can be added up if each sums axes of its own operands and all have the same axes."""
        summed = reduced_axes(n.op, [x.axes for x in args], n.reduce)
        results: list[frozenset[str]] = []
        for (x, y), over in zip(PRODUCTS[n.op], summed, strict=True):
            pair = f"the product of operands {x + 1} and {y + 1}"
            if not over:
                self.fail(i, f"{pair} sums no axis; name one in `reduce`, or use mul and add")
            for a in over:
                if a not in args[x].axes & args[y].axes:
                    k = x if a not in args[x].axes else y
                    self.fail(
                        i, f"sums axis {a}, which operand {k + 1} of {pair} does not have; sum it in a node before"
                    )
            results.append((args[x].axes | args[y].axes) - set(over))
        if results[0] != results[1]:
            self.fail(
                i,
                f"adds a product with axes {sorted(results[0])} to one with axes {sorted(results[1])}; both need "
                f"the same axes",
            )

    def concat(self, i: int, n: Node, args: Sequence[_Value]) -> _Value:
        assert n.joined is not None
        result, parts = n.joined
        if len(parts) != len(args):
            self.fail(i, f"joins {len(parts)} axes of {len(args)} operands; name one per operand")
        sizes = self.program.axes
        for a in (result, *parts):
            if a not in sizes:
                self.fail(i, f"joins axis {a}, which has no size; give it in `axes`")
            if a in self.seen_in_part(i):
                self.fail(
                    i, f"joins axis {a}, of which a block or iteration sees only a part; make its role whole"
                )
        for part, x in zip(parts, args, strict=True):
            if part not in x.axes:
                self.fail(i, f"joins axis {part}, which its operand {sorted(x.axes)} does not have")
        if sympy.expand(sum((sizes[a] for a in parts), -sizes[result])) != 0:
            total = " + ".join(f"({sizes[a]})" for a in parts)
            self.fail(
                i, f"joins axes of sizes {total} into {result} of size {sizes[result]}; the sum must be equal"
            )
        axes = _union(x.axes - {part} for part, x in zip(parts, args, strict=True))
        if clash := axes & {result, *parts}:
            self.fail(i, f"axis {min(clash)} is joined and also another axis of an operand; rename one")
        return _Value(axes | {result}, self.pending(i, n, args))

    def looped(self, i: int) -> frozenset[str]:
        """The loop and split axes of which node i sees only a part: after the loop, a block's part of a split one."""
        return self.loop & frozenset(self.graph.grid) if i in self.graph.after_loop else self.loop

    def seen_in_part(self, i: int) -> frozenset[str]:
        return self.divided | frozenset(self.graph.grid) | self.looped(i)

    def child(self, i: int, n: Node, args: Sequence[_Value]) -> tuple[_Value, ...]:
        assert n.graph is not None
        what = "kernel" if self.graph.level is Level.KERNEL else "thread graph"
        check = _GraphCheck(
            self.program,
            n.graph,
            args,
            f"{self.path}{what} {i}, ",
            self.open_axes | self.looped(i),
            self.seen_in_part(i),
        )
        return tuple(check.run())

    def output(self, k: int) -> _Value:
        ref = self.graph.outputs[k]
        self.check_ref(None, ref.node, ref.out, len(self.values))
        value = self.values[ref.node][ref.out]
        if ref.node in self.graph.in_loop:
            self.fail(
                ref.node,
                f"is output {k} but changes with the loop over {', '.join(self.graph.loop)}; accumulate it",
            )
        axes, pending = value.axes, value.pending
        for a, role in self.graph.roles:
            if role is Role.PARALLEL and a not in axes:
                self.fail(
                    ref.node,
                    f"is output {k} without the parallel axis {a}, so all blocks along {a} would write "
                    f"the same elements; "
                    "make it whole, loop or split, or compute this output in another kernel",
                )
            # blocks write their parts of a split axis that was concatenated, or partial results
            if role is Role.SPLIT and a not in axes:
                part = partial_axis(a)
                if a not in pending:
                    self.fail(
                        ref.node,
                        f"is output {k} but neither a sum over the split axis {a} nor concatenated along it; "
                        f"compute it in another kernel",
                    )
                if part in axes:
                    self.fail(
                        ref.node,
                        f"is output {k} and has axis {part} already; sum it before {a} is split again",
                    )
                axes, pending = axes | {part}, (pending - {a}) | {part}
        return _Value(axes, pending)


def _summed(factors: Sequence[Part], over: bool, still: bool) -> Part:
    """A product of one or two factors, summed over an axis if `over`, of which it sees only a part if `still`."""
    product = fold(LINEAR.mul, factors)
    if not over or (Part.PARTIAL in factors and product is not Part.PARTIAL):
        return product
    return Part.PARTIAL if still else Part.FIXED


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return _NONE.union(*sets)


def _text(dims: AxisDims) -> str:
    return f"[{', '.join('*'.join(d) or '1' for d in dims)}]"
