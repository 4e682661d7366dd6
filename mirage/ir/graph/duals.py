"""Values with a place for their cotangent, as functions have them whose gradient is recorded on a tape.

The dual of a floating-point tensor is a pair: the tensor, and a reference that its cotangents are added up in. That of a tuple or
of data has duals within, that of a function takes and gives duals. Data types whose fields name tensors or functions have a dual
declaration; all others are their own. The reference is of a tensor of unknown rank, so that what two branches return is one type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mirage.errors import GradientError
from mirage.ir.annotations import (
    Annotation,
    CallableType,
    DataType,
    ObjectType,
    PartialTensor,
    ReferenceType,
    TupleType,
    parts,
)
from mirage.ir.data import Constructor, DataDeclaration
from mirage.ir.graph.builder import FunctionBuilder
from mirage.ir.graph.cotangents import is_float
from mirage.ir.graph.nodes import (
    Atom,
    Block,
    Clause,
    Construct,
    Expr,
    Function,
    FunctionCall,
    MakeTuple,
    Match,
    MatchCast,
    OpCall,
    ReferenceCall,
    TupleItem,
    Var,
)
from mirage.ir.graph.patterns import Bind, Case, Fields, Pattern
from mirage.ir.operator import get_operator
from mirage.ir.types import TensorType


def place_type(annotation: Annotation) -> ReferenceType:
    """The type of the reference that the cotangent of a floating-point tensor is in."""
    assert isinstance(annotation, TensorType | PartialTensor)
    return ReferenceType(PartialTensor(None, annotation.dtype))


@dataclass
class Duals:
    """Duals of the types and values of one module, whose data types are `data`; `functions` grows."""

    functions: dict[str, Function]
    reserve: Callable[[str], str]
    data: Mapping[str, DataDeclaration]
    _declarations: dict[str, DataDeclaration] = field(default_factory=dict)
    _walks: dict[tuple[str, str], str] = field(default_factory=dict)

    # types

    def type(self, a: Annotation) -> Annotation:
        """The annotation of the dual of a value; raises GradientError for what has none."""
        match a:
            case TensorType() | PartialTensor():
                return TupleType((a, place_type(a))) if is_float(a) else a
            case TupleType(fields):
                return TupleType(tuple(map(self.type, fields)))
            case DataType(name, arguments):
                return DataType(self.declaration(name).name, tuple(map(self.type, arguments)))
            case CallableType(given, returns, True) if given is not None:
                return CallableType(tuple(map(self.type, given)), self.type(returns), pure=False)
            case CallableType() | ReferenceType() | ObjectType():
                raise GradientError(
                    f"a value of type {a} has no gradient; use tensors, data and functions without effects, or compute it "
                    "outside of what is differentiated"
                )
        return a

    def declaration(self, name: str) -> DataDeclaration:
        """The dual of a declaration: itself, unless its fields name tensors or functions, or data types of which they do."""
        d = self.data[name]
        if not self._holds(name, set()):
            return d
        if name not in self._declarations:
            made = f"Dual{name}"
            self._declarations[name] = DataDeclaration(made, d.parameters, (Constructor(made),))
            constructors = tuple(
                Constructor(f"Dual{c.name}", tuple((f, self.type(a)) for f, a in c.fields)) for c in d.constructors
            )
            self._declarations[name] = DataDeclaration(made, d.parameters, constructors)
        return self._declarations[name]

    def _holds(self, name: str, seen: set[str]) -> bool:
        seen.add(name)
        inner = [a for c in self.data[name].constructors for _, t in c.fields for a in parts(t)]
        others = {a.name for a in inner if isinstance(a, DataType)} - seen
        return any(is_float(a) or isinstance(a, CallableType) for a in inner) or any(self._holds(n, seen) for n in others)

    def pattern(self, p: Pattern) -> Pattern:
        """The pattern of the duals of what a pattern matches."""
        match p:
            case Case(data, index, fields):
                return Case(self.declaration(data.name), index, tuple(map(self.pattern, fields)))
            case Fields(fields):
                return Fields(tuple(map(self.pattern, fields)))
        return p

    # values

    def place(self, b: FunctionBuilder, x: Atom, where: str = "") -> Var:
        """A new reference for the cotangent of a tensor, 0 at first."""
        a = x.annotation
        assert isinstance(a, TensorType | PartialTensor) and a.dtype is not None
        if isinstance(a, TensorType):
            zero: Expr = operator("full", (), shape=a.shape, value=0, dtype=a.dtype)
        else:
            # false is 0, whatever the shape is
            never = b.emit(operator("less", (x, x)), where=where)
            zero = operator("cast", (never,), dtype=a.dtype)
        unknown = b.emit(zero, annotation=place_type(a).value, where=where)
        return b.emit(ReferenceCall("new", (unknown,)), name="place", where=where)

    def new(self, b: FunctionBuilder, x: Atom, where: str = "") -> Atom:
        """The dual of a value whose gradient starts here: its cotangents are not handed on."""
        a = x.annotation
        match a:
            case DataType():
                if self.type(a) == a:
                    return x
                return b.emit(FunctionCall(self._walk("new", a), (x,)), annotation=self.type(a), where=where)
            case TupleType(fields) if self.type(a) != a:
                items = [b.emit(TupleItem((x,), k), where=where) for k in range(len(fields))]
                return b.emit(MakeTuple(tuple(self.new(b, i, where) for i in items)), where=where)
            case CallableType():
                raise GradientError(
                    f"a function of type {a} from around what is differentiated has no gradient; define it inside"
                )
        return b.emit(MakeTuple((x, self.place(b, x, where))), where=where) if is_float(a) else x

    def gradient(self, b: FunctionBuilder, a: Annotation, dual: Atom) -> Atom:
        """The cotangents of a value with this annotation, in a value of its kind, from its dual."""
        match a:
            case DataType():
                return b.emit(FunctionCall(self._walk("gradient", a), (dual,)), annotation=a)
            case TupleType(fields):
                items = [b.emit(TupleItem((dual,), k)) for k in range(len(fields))]
                return b.emit(MakeTuple(tuple(self.gradient(b, t, i) for t, i in zip(fields, items, strict=True))))
        held = b.emit(ReferenceCall("read", (b.emit(TupleItem((dual,), 1)),)))
        return b.emit(MatchCast((held,), a))

    def _walk(self, kind: str, a: DataType) -> str:
        """The function that goes through data: that gives its dual, or the cotangents that are in one."""
        key = kind, str(a)
        if key in self._walks:
            return self._walks[key]
        name = self._walks[key] = self.reserve(f"{kind}_{a.name.lower()}")
        data, dual = self.data[a.name], self.declaration(a.name)
        before, after = (a, self.type(a)) if kind == "new" else (self.type(a), a)
        taken, made = (data, dual) if kind == "new" else (dual, data)
        assert isinstance(before, DataType) and isinstance(after, DataType)
        # it has effects: it makes references, or reads them
        self.functions[name] = Function(name, (Var("value", before),), (Block((), dataflow=False),), Var("result", after))
        clauses = []
        for k, c in enumerate(data.constructors):
            b = FunctionBuilder(self.reserve(f"{name}_{c.name.lower()}"), self.functions)
            fields = [
                b.fresh_parameter(f, t) for (f, _), t in zip(c.fields, taken.fields(k, before.arguments), strict=True)
            ]
            wanted = made.fields(k, after.arguments)
            found = [
                self.new(b, x) if kind == "new" else self.gradient(b, t, x) for x, t in zip(fields, wanted, strict=True)
            ]
            self.functions[b.name] = b.finish(b.emit(Construct(made, k, tuple(found))))
            clauses.append(Clause(Case(taken, k, tuple(Bind(f.name) for f in fields)), b.name))
        b = FunctionBuilder(name, self.functions)
        value = b.fresh_parameter("value", before)
        self.functions[name] = b.finish(b.emit(Match((value,), tuple(clauses)), annotation=after))
        return name


def operator(name: str, args: Sequence[Atom], **attrs: object) -> OpCall:
    """An operator of operands, with its attributes."""
    return OpCall(name, tuple(args), tuple(get_operator(name).check_attrs(attrs).items()))
