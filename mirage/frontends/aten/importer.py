"""From an ATen graph to a module of the graph IR, node by node."""

from __future__ import annotations

import operator as python_operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from mirage.errors import MirageError, UnsupportedNode
from mirage.frontends.aten import (  # noqa: F401
    lower_attention,
    lower_contraction,
    lower_convolution,
    lower_creation,
    lower_elementwise,
    lower_histogram,
    lower_indexing,
    lower_movement,
    lower_order,
    lower_pooling,
    lower_recurrent,
    lower_reduction,
    lower_segments,
    lower_unique,
)
from mirage.frontends.aten.fallback import call_operator
from mirage.frontends.aten.table import LOWERINGS, Call
from mirage.frontends.aten.types import REPLACED, annotation_of, converted, dim_of
from mirage.frontends.aten.updates import COPY, in_place, updates, written_inputs
from mirage.frontends.calls import match_cast, shape
from mirage.frontends.functions import recorded
from mirage.frontends.graph import GraphTrace
from mirage.frontends.imported import Given, Imported, Refused
from mirage.frontends.proxy import TRACE, Traced, placed
from mirage.frontends.tensors import GraphTensor
from mirage.ir.annotations import Annotation, ObjectType, ShapeType, TupleType, symbols_in
from mirage.ir.dims import Dim, symbol
from mirage.ir.graph.nodes import PACKAGES
from mirage.ir.graph.traverse import determined, value_dims
from mirage.ir.types import STORED_INTEGERS, TensorType

#: nodes that only state what sizes or types are: a graph's sizes are dims that say it themselves
_STATEMENTS = (
    "aten._assert_tensor_metadata",
    "aten._assert_scalar",
    "aten.sym_constrain_range",
    "aten.sym_constrain_range_for_size",
)


#: operators that read what is only stored, in another order or as another type
_READS = (
    "_to_copy", "_unsafe_view", "alias", "clone", "contiguous", "copy", "copy_", "detach", "expand", "permute", "reshape",
    "select.int", "slice.Tensor", "squeeze.dim", "t", "transpose.int", "unsqueeze", "view",
)  # fmt: skip


def import_graph(graph: torch.fx.GraphModule, name: str = "main", only_native: bool = False) -> Imported:
    """The module of a graph of ATen operators whose nodes have fake tensors as their values (`meta["val"]`).

    An operator without a lowering becomes a call of ATen's own. Raises UnsupportedNode, which lists all nodes that cannot be
    imported; with `only_native` those without a lowering are among them.
    """
    return _Importer(graph, only_native).run(name)


class _Importer:
    def __init__(self, graph: torch.fx.GraphModule, only_native: bool) -> None:
        self.graph = graph
        self.only_native = only_native
        self.values: dict[torch.fx.Node, Any] = {}
        self.native: Counter[str] = Counter()
        self.fallback: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}
        self.refused: list[str] = []
        self.outputs: list[int | Given] = []
        #: nodes that may write over their first operand, and the inputs that they write to
        self.updates = updates(graph.graph)
        self.written = written_inputs(graph.graph)
        #: nodes whose value is the memory of an input, which is written to
        self.home: dict[torch.fx.Node, torch.fx.Node] = {n: n for n in self.written}

    def run(self, name: str) -> Imported:
        nodes = list(self.graph.graph.nodes)
        placeholders = [n for n in nodes if n.op == "placeholder"]
        token = REPLACED.set(_replaced([n.meta.get("val") for n in placeholders]))
        try:
            return self._run(name, nodes, placeholders)
        finally:
            REPLACED.reset(token)

    def _run(self, name: str, nodes: Sequence[torch.fx.Node], placeholders: Sequence[torch.fx.Node]) -> Imported:
        attributes = [n for n in nodes if n.op == "get_attr" and isinstance(_attribute(self.graph, n), torch.Tensor)]
        known = set().union(*(symbols_in(annotation_of(n.meta.get("val"))) for n in placeholders), set())
        declared: dict[str, Annotation] = {}
        inputs: list[int] = []
        owners: list[torch.fx.Node] = []
        for k, n in enumerate(placeholders):
            value = n.meta.get("val")
            if isinstance(value, torch.SymInt):
                self.values[n] = dim = dim_of(value)
                if not dim.is_Symbol or dim.name in known:
                    continue
                known.add(dim.name)
                declared[n.name] = ShapeType((dim,))
            elif isinstance(value, torch.Tensor):
                declared[n.name] = annotation_of(value)
                owners.append(n)
            else:
                self.values[n] = value
                continue
            inputs.append(k)
        for n in attributes:
            declared[n.name] = annotation_of(_attribute(self.graph, n))
            owners.append(n)
        positions = {n: k for k, n in enumerate(placeholders)}

        def program(**parameters: Any) -> Any:
            for n in owners:
                self.values[n] = parameters[n.name]
            for n in nodes:
                if n.op not in ("placeholder", "output") and n not in self.values:
                    self._node(n)
            if self.refused:
                lines = "\n  ".join(self.refused)
                raise UnsupportedNode(f"{len(self.refused)} nodes cannot be imported:\n  {lines}")
            return self._results(nodes[-1], positions)

        module = recorded(name, program, declared, attrs=((PACKAGES, "torch"),))
        return Imported(
            module, inputs, [_attribute(self.graph, n) for n in attributes], self.outputs,
            self.native, self.fallback, self.reasons,
        )  # fmt: skip

    def _results(self, output: torch.fx.Node, positions: dict[torch.fx.Node, int]) -> Any:
        """The values that the module returns; notes which output is which."""
        results: list[Any] = []
        (found,) = output.args
        for x in found if isinstance(found, tuple | list) else (found,):
            value = self._value(x)
            if isinstance(x, torch.fx.Node) and x.op == "placeholder":
                self.outputs.append(Given(positions[x]))
                continue
            if isinstance(value, sympy.Expr) and not value.is_Integer:
                value = shape(value)
            elif isinstance(value, torch.SymFloat | torch.SymBool):
                raise UnsupportedNode(f"an output is the number {value}, which no graph holds; return a tensor")
            elif not isinstance(value, Traced):
                self.outputs.append(Given(value=int(value) if isinstance(value, sympy.Integer) else value))
                continue
            self.outputs.append(len(results))
            results.append(value)
        # a graph that computes nothing is only there for its effects
        return tuple(results) or (shape(),)

    def _value(self, x: Any) -> Any:
        """An argument of a node with values for nodes."""
        if isinstance(x, torch.fx.Node):
            return self.values[x]
        if isinstance(x, tuple | list):
            return [self._value(v) for v in x]
        return {key: self._value(v) for key, v in x.items()} if isinstance(x, dict) else x

    def _node(self, n: torch.fx.Node) -> None:
        value = n.meta.get("val")
        try:
            with placed(_place(n)):
                self.values[n] = self._call(n, value)
        except MirageError as e:
            self.values[n] = Refused()
            if not self._reads_refused(n):
                where = _place(n)
                self.refused.append(f"{n.name} = {_name(n.target)}: {e}" + (f" ({where})" if where else ""))

    def _call(self, n: torch.fx.Node, value: Any) -> Any:
        if isinstance(value, int | float | bool):
            return value
        trace: GraphTrace = TRACE.get().graph  # type: ignore[assignment]
        if isinstance(value, torch.SymInt):
            dim = dim_of(value)
            if {s.name for s in dim.free_symbols} <= trace.scope:
                return dim
        if isinstance(value, torch.SymBool | torch.SymFloat):
            # what is stated of sizes; an operator that computes with one has no lowering, and no argument for ATen
            return value
        if n.target is python_operator.getitem:
            source, k = self._value(n.args)
            if isinstance(source, Refused):
                raise UnsupportedNode("an operand of it was not imported")
            return source[k]
        if not isinstance(n.target, torch._ops.OpOverload):
            raise UnsupportedNode(f"{_name(n.target)} is no operator of ATen")
        name = str(n.target)
        if name.rpartition(".")[0] in _STATEMENTS:
            return None
        args, kwargs = self._value(n.args), self._value(n.kwargs)
        if self._reads_refused(n):
            raise UnsupportedNode("an operand of it was not imported")
        self._check_memory(n)
        try:
            if n.target is COPY and self.home.get(n.args[0], n) is self.home.get(n.args[1]):
                # what is to be copied was written there
                return args[1]
            found = self._lowered(name, trace, args, kwargs, value, n)
            self.native[name] += 1
            return found
        except MirageError as e:
            self.reasons.setdefault(name, str(e))
            if self.only_native:
                raise
        found = call_operator(trace, n.target, args, kwargs, value)
        self.fallback[name] += 1
        return found

    def _reads_refused(self, n: torch.fx.Node) -> bool:
        """Whether an operand of a node, or an element of one, was not imported."""
        return any(isinstance(self.values.get(m), Refused) for m in n.all_input_nodes)

    def _check_memory(self, n: torch.fx.Node) -> None:
        """Raises UnsupportedNode for an operator that sees how elements lie in memory: values here do not share theirs."""
        given = dict(zip((a.name for a in n.target._schema.arguments), n.args, strict=False)) | n.kwargs
        for a in n.target._schema.arguments:
            written = given.get(a.name) if a.alias_info is not None and a.alias_info.is_write else None
            if isinstance(written, torch.fx.Node) and written.op != "placeholder":
                raise UnsupportedNode("it writes to what is no input of the graph; functionalize the graph before")
        if n.target is torch.ops.aten.unique_consecutive.default and (given.get("dim") or 0) < 0:
            # decompose.py has it counted from the front
            raise UnsupportedNode("torch says other shapes of its results than it gives: its dim is negative")
        if n.target._schema.name.startswith("aten::as_strided"):
            x = n.args[0].meta["val"]
            if x.storage_offset() != 0 or not x.is_contiguous():
                raise UnsupportedNode("it reads memory around a view")

    def _lowered(
        self, name: str, trace: GraphTrace, args: Sequence[Any], kwargs: dict[str, Any], value: Any, n: torch.fx.Node
    ) -> Any:
        """What a lowering gives, if it is of the type that torch says."""
        operator = name.removeprefix("aten.").removesuffix(".default")
        lowering: Callable[..., Any] | None = LOWERINGS.get(operator)
        if lowering is None:
            raise UnsupportedNode("it has no lowering")
        returns = annotation_of(value)
        operands = [x for x in (self.values[m] for m in n.all_input_nodes) if isinstance(x, Traced)]
        stored = [isinstance(x, GraphTensor) and x.dtype in STORED_INTEGERS for x in operands]
        if not all(isinstance(x, GraphTensor) for x in operands) or (any(stored) and operator not in _READS):
            raise UnsupportedNode("an operand of it is of an element type that is not computed with")
        if isinstance(returns, TensorType) and returns.dtype in STORED_INTEGERS and not any(stored):
            raise UnsupportedNode("its result is of an element type that is not computed with")
        found = lowering(Call(name, trace, returns), *args, **kwargs)
        if isinstance(returns, TupleType):
            return tuple(_as(self._own(f), a) for f, a in zip(found, returns.fields, strict=True))
        target = self.updates.get(n)
        if target is not None and self.home.get(n.args[0]) is target:
            written = in_place(trace, args[0], found)
            if written is not None:
                self.home[n] = target
                return _as(written, returns)
        return _as(self._own(found), returns)

    def _own(self, x: Any) -> Any:
        """A result as a value of its own: one that is an operand itself must not change when that is written to."""
        shared = isinstance(x, GraphTensor) and any(self.values[n] is x for n in self.home)
        return x.reshape(x.shape) if shared else x


def _as(x: Any, wanted: Annotation) -> Any:
    """A result as a value of the type that torch says: dims that are equal but written otherwise are checked at run time."""
    if not isinstance(x, GraphTensor):
        raise UnsupportedNode(f"its lowering gives {x!r}, no tensor")
    if x.annotation == wanted:
        return x
    if isinstance(wanted, ObjectType):
        raise UnsupportedNode("its result is of an element type that is not computed with")
    return match_cast(x, wanted)


def _replaced(values: Sequence[Any]) -> dict[Dim, Dim]:
    """Dims for formulas of the sizes of inputs, which are fake tensors and sizes."""
    return {**_constants(values), **_joined(values)}


def _constants(values: Sequence[Any]) -> dict[Dim, Dim]:
    """Formulas that are constants, as guards say: the patches of an image are as many as the embeddings of their positions."""
    sizes = [n for v in values for n in (v.shape if isinstance(v, torch.Tensor) else (v,)) if isinstance(n, torch.SymInt)]
    found: dict[Dim, Dim] = {}
    for guard in sizes[0].node.shape_env.guards if sizes else ():
        if not isinstance(guard.expr, sympy.Eq):
            continue
        try:
            left, right = converted(guard.expr.lhs), converted(guard.expr.rhs)
        except UnsupportedNode:
            continue
        constant, formula = sympy.expand(left - right).as_coeff_Add()
        factor, formula = formula.as_coeff_Mul()
        if formula.free_symbols and constant % factor == 0:
            found[formula] = -constant // factor
    return found


def _joined(values: Sequence[Any]) -> dict[Dim, Dim]:
    """Products of sizes that these inputs do not tell by themselves, and a dim for each: torch hands a backward graph the tensor
    of b*t rows, but neither b nor t.
    """
    sizes = [ShapeType((dim_of(v),)) for v in values if isinstance(v, torch.SymInt)]
    dims = [d for v in values if isinstance(v, torch.Tensor) for d in value_dims(annotation_of(v))]
    known = determined([*sizes, *(ShapeType((d,)) for d in dims)])
    found: dict[Dim, Dim] = {}
    for term in (t for d in dims for t in sympy.Add.make_args(d)):
        unknown = sorted({s.name for s in term.free_symbols} - known)
        if len(unknown) > 1 and not term.has(sympy.Function):
            found[sympy.prod(map(symbol, unknown))] = symbol("_".join(unknown))
    return found


def _attribute(graph: torch.fx.GraphModule, n: torch.fx.Node) -> Any:
    found: Any = graph
    for part in str(n.target).split("."):
        found = getattr(found, part)
    return found


def _name(target: Any) -> str:
    return str(target) if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", str(target))


def _place(n: torch.fx.Node) -> str:
    """The user's line that a node comes from, `file.py:LINE: code`."""
    lines = [line.strip() for line in (n.meta.get("stack_trace") or "").splitlines() if line.strip()]
    for above, below in zip(reversed(lines[:-1]), reversed(lines[1:]), strict=True):
        if above.startswith("File "):
            file, _, rest = above.removeprefix("File ").partition(", line ")
            return f"{file.strip(chr(34)).rpartition('/')[2]}:{rest.partition(',')[0]}: {below}"
    return ""
