"""From an ONNX model to a module of the graph IR, node by node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import sympy
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from mirage.errors import MirageError, UnsupportedNode
from mirage.frontends.functions import recorded
from mirage.frontends.graph import GraphTrace
from mirage.frontends.graph_ops import cast
from mirage.frontends.imported import Given, Imported, Refused
from mirage.frontends.onnx import (  # noqa: F401
    fallback,
    lower_attention,
    lower_contraction,
    lower_control,
    lower_elementwise,
    lower_movement,
    lower_quantized,
    lower_recurrent,
    lower_reduction,
    lower_resize,
    lower_signal,
    lower_windows,
)
from mirage.frontends.onnx.bodies import arguments, body_of, resolved
from mirage.frontends.onnx.names import Names
from mirage.frontends.onnx.node_models import single
from mirage.frontends.onnx.nodes import Scope, attributes_of, captured, place_of, schema_of, sizes_of
from mirage.frontends.onnx.table import LOWERINGS, Call
from mirage.frontends.onnx.types import NAMES, annotation_of
from mirage.frontends.onnx.values import SMALL, Value, array_of, check_size, dense, folded, widened
from mirage.frontends.proxy import TRACE, Traced, placed
from mirage.frontends.tensors import GraphTensor
from mirage.ir.annotations import Annotation, ObjectType, PartialTensor
from mirage.ir.types import ELEMENTS, TensorType

#: elements of a constant that is written into the module; of others, arrays are parameters
_WRITTEN = 64
#: operators whose results may be larger than their operands by far
_GROWING = frozenset(
    {"ConstantOfShape", "Expand", "Tile", "Range", "Pad", "Resize", "Upsample", "OneHot", "CenterCropPad"}
)
#: operators that the evaluator has whole, and whose bodies are loops, one round for each element
_WHOLE = frozenset({"Range", "Scan"})
#: what nodes with operands or attributes that do not fit them raise beside our own errors
_MALFORMED = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
#: functions within functions
_DEPTH = 32


@dataclass
class ImportedModel(Imported):
    """A model as a module; positions are those of the inputs of the graph that are no initializers.

    `needed` are inputs whose values decide shapes or attributes: where they are known, more operators are native. `weights` are
    the names of the parameters that hold `attributes`.
    """

    needed: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)


def import_model(
    model: ModelProto, values: Mapping[str, np.ndarray] | None = None, name: str = "main", only_native: bool = False
) -> ImportedModel:
    """The module of a checked model; `values` are inputs that hold the same in all calls.

    An operator without a lowering is what its body says, else a call of ONNX's reference evaluator. Raises UnsupportedNode, which
    lists all nodes that cannot be imported; with `only_native` those that need the evaluator are among them.
    """
    return _Importer(model, values or {}, only_native).run(name)


class _Importer:
    def __init__(self, model: ModelProto, values: Mapping[str, np.ndarray], only_native: bool) -> None:
        self.model = model
        self.given = values
        self.only_native = only_native
        self.functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self.native: Counter[str] = Counter()
        self.fallback: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}
        self.refused: list[str] = []
        self.needed: dict[str, None] = {}
        self.outputs: list[int | Given] = []

    def run(self, name: str) -> ImportedModel:
        graph = self.model.graph
        opsets = {o.domain: o.version for o in self.model.opset_import}
        scope = Scope({"": 1, **opsets, **({"": opsets["ai.onnx"]} if "ai.onnx" in opsets else {})})
        arrays = {t.name: array_of(t) for t in graph.initializer}
        for s in graph.sparse_initializer:
            arrays[s.values.name] = dense(s)
        inputs = [i for i in graph.input if i.name not in arrays]
        names, declared = Names(), dict[str, Annotation]()
        parameters: dict[str, str] = {}
        positions: list[int] = []
        for k, i in enumerate(inputs):
            if i.name in self.given:
                scope.values[i.name] = Value(known=np.asarray(self.given[i.name]), type=i.type)
                continue
            parameters[i.name] = names.parameter(i.name)
            declared[parameters[i.name]] = _input(i.type, names, i.name)
            positions.append(k)
        attributes: list[Any] = []
        weights: list[str] = []
        for tensor, array in arrays.items():
            scope.values[tensor] = Value(known=array)
            if array.size > _WRITTEN:
                parameters[tensor] = names.parameter(tensor)
                declared[parameters[tensor]] = _constant(array)
                weights.append(parameters[tensor])
                attributes.append(array)
        if not declared:
            # a function has a parameter
            declared[names.parameter("nothing")] = ObjectType()
        given = {i.name: k for k, i in enumerate(inputs)}

        def program(**stand_ins: Any) -> Any:
            for value, parameter in parameters.items():
                if value in arrays:
                    scope.values[value].traced = stand_ins[parameter]
                else:
                    type_ = inputs[given[value]].type
                    traced = stand_ins[parameter]
                    traced = fallback.named(_trace(), traced, traced.annotation)
                    sources = frozenset({value} if isinstance(traced.annotation, TensorType) else ())
                    scope.values[value] = Value(traced, type=_object(traced, type_), sources=sources)
            self._graph(graph.node, scope)
            if self.refused:
                lines = "\n  ".join(self.refused)
                raise UnsupportedNode(f"{len(self.refused)} nodes cannot be imported:\n  {lines}")
            return self._results(scope, given)

        module = recorded(name, program, declared)
        return ImportedModel(
            module,
            positions,
            attributes,
            self.outputs,
            self.native,
            self.fallback,
            self.reasons,
            list(self.needed),
            weights,
        )

    def _results(self, scope: Scope, given: Mapping[str, int]) -> Any:
        results: list[Any] = []
        shared: dict[int, int] = {}
        for o in self.model.graph.output:
            value = scope.find(o.name)
            source = next((n for n, k in given.items() if n not in self.given and scope.values.get(n) is value), None)
            if source is not None:
                self.outputs.append(Given(given[source]))
            elif value.known is not None and (value.traced is not None or not value.is_symbolic):
                self.outputs.append(Given(value=value.known))
            elif id(value) in shared:
                self.outputs.append(shared[id(value)])
            else:
                shared[id(value)] = len(results)
                self.outputs.append(len(results))
                results.append(value.tensor(_trace()))
        # a graph that computes nothing has a result, too
        return tuple(results) or (_trace().wrap(_trace().array("nothing", np.zeros((), np.int64))),)

    def _graph(self, nodes: Sequence[NodeProto], scope: Scope) -> None:
        for node in nodes:
            try:
                with placed(place_of(node)):
                    found = self._node(node, scope)
            except (MirageError, *_MALFORMED) as e:
                operands = [scope.values.get(n) for n in node.input]
                if not any(isinstance(v, Refused) for v in operands):
                    self.refused.append(f"{place_of(node)}: {_why(e)}")
                found = [Refused()] * len(node.output)
            for name, value in zip(node.output, found, strict=False):
                if name:
                    scope.values[name] = value

    def _node(self, node: NodeProto, scope: Scope) -> Sequence[Any]:
        """The values of a node's outputs."""
        operands = [scope.find(name) if name else None for name in node.input]
        if any(isinstance(v, Refused) for v in operands):
            raise UnsupportedNode("an operand of it was not imported")
        name = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        function = self.functions.get((node.domain, node.op_type, node.overload))
        if function is not None:
            return self._inlined(function, node, operands, scope, None)
        version = scope.opsets.get("" if node.domain == "ai.onnx" else node.domain)
        if version is None:
            raise UnsupportedNode(f"the model imports no operators of the domain {node.domain!r}")
        schema = schema_of(node, version)
        found = self._known(node, name, operands, scope)
        if found is None:
            found = self._computed(node, name, version, schema, operands, scope)
        for v in found:
            check_size(v)
        sources = [v.sources for v in operands if v is not None and v.known is None]
        if sources and all(sources) and not any(isinstance(v, Refused) for v in found):
            for v in found:
                v.sources = v.sources or frozenset().union(*sources)
        return found

    def _known(
        self, node: NodeProto, name: str, operands: Sequence[Value | None], scope: Scope
    ) -> Sequence[Value] | None:
        """What a node gives that is known before a call; None where it is not."""
        if name in ("Shape", "Size"):
            return sizes_of(node, operands[0])
        if name == "Identity" and operands[0] is not None:
            return [operands[0]]
        held = [None if v is None else v.known for v in operands]
        if any(v is not None and v.known is None for v in operands) or name in fallback.RANDOM:
            return None
        if any(x.size > SMALL for x in held if x is not None):
            return None
        if name == "DequantizeLinear" and held[0] is not None and held[0].ndim > 1:
            # weights: products of whole numbers are made of them
            return None
        if any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute):
            return None
        if any(v is not None and v.is_symbolic for v in operands):
            try:
                return [Value(known=folded(name, held, attributes_of(node)))]
            except MirageError:
                return None
        if name in _GROWING and not self._is_small(node, operands, scope):
            return None
        model = single(node, [n for n in node.input if n], scope.opsets, (), self.model.ir_version)
        feeds = {n: x for n, x in zip(node.input, held, strict=True) if n}
        try:
            results = fallback.evaluated(model, feeds)
        except Exception:
            return None
        found = dict(zip((n for n in node.output if n), results, strict=False))
        if not all(isinstance(r, np.ndarray | np.generic) and r.size <= SMALL for r in results):
            return None
        return [Value(known=np.asarray(found[n])) if n else Value() for n in node.output]

    def _is_small(self, node: NodeProto, operands: Sequence[Value | None], scope: Scope) -> bool:
        """Whether ONNX says that the result of a node of known operands is a small tensor."""
        values = {n: v for n, v in zip(node.input, operands, strict=True) if v is not None}
        schema = schema_of(node, scope.opsets.get("", 1))
        (found,) = fallback.types_of(node, schema, values, scope.opsets, fallback.Typing())
        annotation = annotation_of(found, lambda name: None)
        return isinstance(annotation, TensorType) and prod(map(int, annotation.shape)) <= SMALL

    def _computed(
        self, node: NodeProto, name: str, version: int, schema: Any, operands: Sequence[Value | None], scope: Scope
    ) -> Sequence[Value]:
        for lower in (self._lowered, self._widened):
            try:
                found = lower(node, name, version, operands, scope)
                self.native[name] += 1
                return found
            except (MirageError, *_MALFORMED) as e:
                self.reasons.setdefault(name, _why(e))
        typing = fallback.Typing()
        if schema is not None and scope.depth < _DEPTH:
            types = [None if v is None else typing.type_of(v) for v in operands]
            given = [t for v, t in zip(operands, types, strict=True) if v is not None]
            body = body_of(schema, node, version, given) if all(t is not None for t in given) else None
            if body is not None and name not in _WHOLE:
                native, fell = self.native.copy(), self.fallback.copy()
                refused = len(self.refused)
                try:
                    found = self._inlined(body, node, operands, scope, schema)
                    if len(self.refused) == refused:
                        return found
                except MirageError:
                    pass
                # the evaluator has the whole operator
                del self.refused[refused:]
                self.native, self.fallback = native, fell
        if self.only_native:
            raise UnsupportedNode(self.reasons[name])
        values = {n: v for n, v in zip(node.input, operands, strict=True) if v is not None}
        values |= {n: scope.find(n) for n in captured(node) if n not in values}
        if any(isinstance(v, Refused) for v in values.values()):
            raise UnsupportedNode("an operand of it was not imported")
        types = fallback.types_of(node, schema, values, scope.opsets, typing)
        model = single(node, list(values), scope.opsets, self.model.functions, self.model.ir_version)
        found = fallback.call_operator(_trace(), model, values, types, typing)
        self.fallback[name] += 1
        return found

    def _lowered(
        self, node: NodeProto, name: str, version: int, operands: Sequence[Value | None], scope: Scope
    ) -> Sequence[Value]:
        lowering = LOWERINGS.get(name)
        if lowering is None:
            raise UnsupportedNode("it has no lowering")
        if version < lowering.since and node.domain in ("", "ai.onnx"):
            raise UnsupportedNode(f"it is of opset {version}, and means another thing since {lowering.since}")
        open_ = [k for k, v in enumerate(operands) if k in lowering.static and v is not None and v.known is None]
        if open_:
            for k in open_:
                value = operands[k]
                assert value is not None
                self.needed |= dict.fromkeys(value.sources)
            raise UnsupportedNode(f"its operand {open_[0]} is only known at a call")
        trace = _trace()
        args: list[Any] = []
        for k, v in enumerate(operands):
            if k in lowering.static:
                args.append(None if v is None else v.known)
                continue
            x = None if v is None else v.tensor(trace)
            if x is not None and not isinstance(x, GraphTensor):
                raise UnsupportedNode("an operand of it is of an element type that is not computed with")
            if x is not None and not isinstance(x.annotation, TensorType):
                raise UnsupportedNode("of an operand of it not even the rank is known")
            args.append(x)

        def values_of(graph: GraphProto, inputs: Sequence[Any]) -> list[Value]:
            return self._inner(graph, inputs, scope)

        call = Call(node, version, trace, attributes_of(node), operands, values_of)
        found = lowering.fn(call, *args)
        results = found if isinstance(found, tuple | list) else (found,)
        return [_value(x) for x in results] + [Value()] * (len(node.output) - len(results))

    def _widened(
        self, node: NodeProto, name: str, version: int, operands: Sequence[Value | None], scope: Scope
    ) -> Sequence[Value]:
        """The same of integers that are only stored, in int64: the results are of the types that ONNX says.

        Sums, products and the like wrap around where they are cast back.
        """
        wide = [widened(v) for v in operands]
        if wide == [*operands]:
            raise UnsupportedNode(self.reasons[name])
        values = {n: v for n, v in zip(node.input, operands, strict=True) if v is not None}
        types = fallback.types_of(node, schema_of(node, version), values, scope.opsets, fallback.Typing())
        found = self._lowered(node, name, version, wide, scope)
        results = []
        for value, type_ in zip(found, types, strict=True):
            code = None if type_ is None else type_.tensor_type.elem_type
            if value.traced is None or code not in NAMES:
                raise UnsupportedNode("of what type its results are is not known")
            dtype = NAMES[code]
            results.append(value if value.traced.dtype == dtype else Value(cast(value.traced, dtype)))
        return results

    def _inner(self, graph: GraphProto, inputs: Sequence[Any], scope: Scope) -> list[Value]:
        """The results of a graph among a node's attributes, recorded in the function whose trace runs."""
        inside = Scope(scope.opsets, scope, depth=scope.depth + 1)
        for t in graph.initializer:
            inside.values[t.name] = Value(known=array_of(t))
        for i, x in zip(graph.input, inputs, strict=True):
            inside.values[i.name] = _value(x)
        before = len(self.refused)
        self._graph(graph.node, inside)
        if len(self.refused) > before:
            why = "; ".join(self.refused[before:])
            del self.refused[before:]
            raise UnsupportedNode(f"its graph cannot be imported: {why}")
        return [inside.find(o.name) for o in graph.output]

    def _inlined(
        self, body: FunctionProto, node: NodeProto, operands: Sequence[Value | None], scope: Scope, schema: Any
    ) -> Sequence[Value]:
        """The results of a function's body for a call of it."""
        if scope.depth >= _DEPTH:
            raise UnsupportedNode(f"functions call each other more than {_DEPTH} deep; there may be a circle")
        opsets = {**(scope.opsets if schema is not None else {}), **{o.domain: o.version for o in body.opset_import}}
        inside = Scope(opsets, depth=scope.depth + 1)
        absent = [*operands, *[None] * (len(body.input) - len(operands))]
        inside.values |= dict(zip(body.input, absent, strict=False))
        given = arguments(body, node, schema)
        self._graph([resolved(n, given) for n in body.node], inside)
        return [inside.find(name) for name in list(body.output)[: len(node.output)]]


def _trace() -> GraphTrace:
    found = TRACE.get().graph
    assert found is not None
    return found


def _value(x: Any) -> Value:
    if isinstance(x, Value):
        return x
    if isinstance(x, np.ndarray):
        return Value(known=x)
    trace = _trace()
    return Value(fallback.named(trace, x, x.annotation) if isinstance(x, Traced) else x)


def _constant(array: np.ndarray) -> Annotation:
    if array.dtype not in ELEMENTS.values():
        return ObjectType()
    return TensorType(tuple(map(sympy.Integer, array.shape)), array.dtype.name)


def _object(traced: Any, type_: Any) -> Any:
    return type_ if isinstance(traced.annotation, ObjectType) else None


def _input(type_: Any, names: Names, name: str) -> Annotation:
    at = iter(range(len(type_.tensor_type.shape.dim)))
    found = annotation_of(type_, lambda d: names.dim(d))
    if isinstance(found, PartialTensor) and found.shape is not None and found.dtype is not None:
        shape = tuple(names.dim(f"{name}_{k}") if d is None else d for k, d in zip(at, found.shape, strict=True))
        return TensorType(shape, found.dtype)
    return found


def _why(e: Exception) -> str:
    """What an error says of a node."""
    return (
        str(e) if isinstance(e, MirageError) else f"its operands or attributes do not fit it ({type(e).__name__}: {e})"
    )
