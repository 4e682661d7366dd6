"""The operator registry: each operator is defined once, by an `Operator` in it.

`Operator` says what a definition consists of; the definitions themselves are in `mirage/ir/operators/`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from functools import reduce as fold
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import sympy

from mirage.errors import (
    AttributeValueError,
    DimError,
    DTypeError,
    DuplicateOperator,
    GradientError,
    MirageError,
    ShapeError,
    UnknownOperator,
)
from mirage.ir.algebra import Algebra
from mirage.ir.annotations import (
    Annotation,
    PartialShape,
    PartialTensor,
    partial_text,
    tensor_annotation,
    without_symbols,
)
from mirage.ir.arithmetic import Arithmetic, ArrayModule, FloatArithmetic, Floats
from mirage.ir.dims import Dim, symbol, symbols_of, to_dim
from mirage.ir.functions import largest
from mirage.ir.gradient import Backward, Cotangents, elementwise_gradient
from mirage.ir.loops.algebra import ScalarAlgebra
from mirage.ir.loops.program import LoopProgram, TensorExpr, compute, operands
from mirage.ir.requirements import AtMost
from mirage.ir.types import (
    DTYPES,
    ELEMENTS,
    INTEGERS,
    STORED_INTEGERS,
    TensorType,
    check_dtype,
    compute_dtype,
    is_one,
    shape_text,
)
from mirage.ir.unknowns import Node, Relation, annotation_of, known, node_of

if TYPE_CHECKING:
    from mirage.ir.program import ProgramBuilder
    from mirage.ir.unify import AxisLowering, AxisTensor


class Level(Enum):
    """Level of a graph in the compute hierarchy (paper, section 2)."""

    KERNEL = "kernel"
    BLOCK = "block"
    THREAD = "thread"


ALL_LEVELS = frozenset(Level)

#: element types that operators take
FLOATING = frozenset(DTYPES)
NUMERIC = FLOATING | frozenset(INTEGERS)
#: what is compared
ORDERED = NUMERIC | frozenset(STORED_INTEGERS)
ANY_ELEMENT = frozenset(ELEMENTS)

Attrs = Mapping[str, Any]


def _to_fraction(value: Any) -> Fraction:
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        raise ValueError("expected a number")
    try:
        exact = Fraction(value if isinstance(value, int | float | Fraction) else float(value))
        float(exact)
    except (OverflowError, ValueError):
        raise ValueError("expected a finite number") from None
    return exact


def _to_int(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError("expected an integer")
    return int(value.__index__())


def _to_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("expected True or False")
    return value


def _to_dtype(value: Any) -> str:
    try:
        return check_dtype(value)
    except DTypeError as e:
        raise ValueError(str(e)) from None


#: attribute kind -> converter to the canonical value
CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "int": _to_int,
    "ints": lambda v: tuple(_to_int(i) for i in (v if isinstance(v, Sequence) else (v,))),
    "bool": _to_bool,
    "number": _to_fraction,
    "dim": to_dim,
    "dims": lambda v: tuple(to_dim(d) for d in (v if isinstance(v, tuple | list) else (v,))),
    "str": str,
    "dtype": _to_dtype,
}

#: operators that rename elements and compute nothing: over named axes they vanish
RENAMING = ("reshape", "transpose", "repeat")

_REQUIRED = object()


@dataclass(frozen=True)
class Attribute:
    """A named constant of an operator: its kind (a key of `CONVERTERS`) and default."""

    name: str
    kind: str
    default: Any = _REQUIRED

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is _REQUIRED


def checked_attrs(op: str, attributes: Sequence[Attribute], given: Attrs) -> dict[str, Any]:
    """Canonical attributes; raises AttributeValueError for unknown, missing or ill-typed ones, DimError for wrong dims."""
    names = [a.name for a in attributes]
    for name in given:
        if name not in names:
            raise AttributeValueError(f"{op}: unknown attribute {name!r}; it takes {', '.join(names) or 'none'}")
    attrs: dict[str, Any] = {}
    for a in attributes:
        value = given.get(a.name, a.default)
        if value is _REQUIRED:
            raise AttributeValueError(f"{op}: attribute {a.name!r} is missing; pass {a.name}=...")
        if value is None and a.default is None:
            continue
        try:
            attrs[a.name] = CONVERTERS[a.kind](value)
        except (TypeError, ValueError) as e:
            raise AttributeValueError(f"{op}: {a.name}={value!r} is wrong: {e}") from None
        except DimError as e:
            raise DimError(f"{op}: {a.name}={value!r} is wrong: {str(e).removeprefix('dim: ')}") from None
    return attrs


@dataclass(frozen=True, eq=False)
class Operator(ABC):
    """One operator: attributes and checks, axis rule, levels, meaning, cost."""

    name: str
    min_arity: int
    max_arity: int
    attributes: tuple[Attribute, ...] = ()
    levels: frozenset[Level] = ALL_LEVELS
    #: element types of operands in graphs
    takes: frozenset[str] = field(default=FLOATING, kw_only=True)

    @property
    def lax(self) -> bool:
        """Whether it can be superoptimized: it has an axis rule, expands into operators that have one, or moves elements."""
        ruled = type(self).to_axes is not Operator.to_axes or type(self).expand is not Operator.expand
        return ruled or self.moves

    @property
    def moves(self) -> bool:
        """Whether it only moves elements, so that kernels can read its results of arguments where these lie."""
        return False

    @property
    def built_in(self) -> bool:
        """Whether the package defines it, not a user."""
        return type(self).__module__.startswith("mirage.")

    def check_attrs(self, given: Attrs) -> dict[str, Any]:
        """Canonical attributes; raises AttributeValueError for unknown, missing or ill-typed ones, DimError for wrong dims."""
        return checked_attrs(self.name, self.attributes, given)

    def settle_attrs(self, args: Sequence[Annotation], attrs: Attrs) -> Attrs:
        """Canonical attributes with what the operands tell of them filled in, such as the -1 of a reshape.

        Graphs hold these: tensors of 0 elements no longer tell at run time. Raises ShapeError.
        """
        return attrs

    def check_arity(self, n: int) -> None:
        if not self.min_arity <= n <= self.max_arity:
            wanted = (
                str(self.min_arity) if self.min_arity == self.max_arity else f"{self.min_arity} to {self.max_arity}"
            )
            raise ShapeError(f"{self.name}: takes {wanted} operands, got {n}")

    @abstractmethod
    def infer(self, types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        """The result's type; raises ShapeError naming the operator and both shapes."""

    def evaluate(
        self, ar: Arithmetic[Any], args: Sequence[Any], attrs: Attrs, shapes: Sequence[tuple[int, ...]]
    ) -> Any:
        """The result over an arithmetic, for operand arrays of the given concrete shapes (after `ar.lead` batch dims)."""
        raise NotImplementedError(f"{self.name} has no meaning of its own; expand the program first")

    def to_axes(self, low: AxisLowering, operands: Sequence[AxisTensor], attrs: Attrs, out: TensorType) -> AxisTensor:
        """The axis rule: how the result's dims are made of the operands' axes."""
        raise NotImplementedError(f"{self.name} has no axis rule of its own; expand the program first")

    def annotate(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        """The result's annotation in a graph, where dims of operands may be unknown (Relax, section 4.1).

        Raises ShapeError and DTypeError for what cannot be right at any size.
        """
        self.check_arity(len(args))
        self.check_elements(args)
        types: list[TensorType] = []
        unknown: set[str] = set()
        for k, a in enumerate(args):
            match a:
                case TensorType():
                    types.append(a)
                case PartialTensor(shape, dtype) if shape is not None and dtype is not None:
                    fresh = tuple(symbol(f"unknown_{k}_{i}") if d is None else d for i, d in enumerate(shape))
                    unknown.update(d.name for d, known in zip(fresh, shape, strict=True) if known is None)
                    types.append(TensorType(fresh, dtype))
                case _:
                    return self.coarse(args, attrs)
        try:
            return without_symbols(self.deduce(types, attrs), unknown)
        except ShapeError:
            # unknown dims may be equal, or 1: the run decides
            if not unknown:
                raise
            return self.coarse(args, attrs)

    def deduce(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        """The result's annotation for operands of known types; more than one tensor for some operators of graphs."""
        return self.infer(types, attrs)

    def relate(self, r: Relation) -> bool:
        """What operands and result say of each other, in both directions; whether nothing is left to be found.

        By default the result follows from the operands, once all but their dims is known. Raises InferenceError.
        """
        for a in r.args:
            r.tensor(a)
        if not all(map(known, r.args)):
            return False
        dims: dict[str, Node] = {}

        def unknown(d: Node) -> Dim:
            name = next((n for n, e in dims.items() if e is d), f"unknown_{len(dims)}")
            dims[name] = d
            return symbol(name)

        given = [annotation_of(a, unknown, lambda _: PartialTensor()) for a in r.args]
        try:
            found = self.annotate(given, r.attrs)
        except MirageError:
            # the deduction of what is found says so, and where
            return True
        own = node_of(found, r.where)
        if dims:
            # dims that are not known in an operand are not in the result, but where they stand as they are
            own = _with_unknown(own, dims)
        r.u.unify(r.out, own, r.what)
        return True

    def requirements(self, types: Sequence[TensorType], attrs: Attrs) -> tuple[AtMost, ...]:
        """What must hold of the dims beside what `deduce` has checked; a guard before the call where it is not proved."""
        return ()

    def coarse(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        """What is known of the result where the operands' shapes do not say more."""
        return PartialTensor(None, common_dtype(args))

    def scalar_dtype(self, types: Sequence[Annotation]) -> str:
        """The element type that scalar constants among the operands take: float64 where all are."""
        return common_dtype(types) or "float64"

    def check_elements(self, args: Sequence[Annotation]) -> None:
        """Raises ShapeError for operands that are no tensors, DTypeError for element types that it does not take."""
        for k, a in enumerate(args):
            if not isinstance(a, TensorType | PartialTensor):
                raise ShapeError(f"{self.name}: operand {k + 1} is {a}, not a tensor; pass a tensor")
            if a.dtype not in (None, "scalar", *self.takes):
                wanted = ", ".join(t for t in ELEMENTS if t in self.takes)
                raise DTypeError(f"{self.name}: operand {k + 1} is {a}; cast it first: it takes {wanted}")

    def run(
        self, arrays: Sequence[Any], attrs: Attrs, sizes: Mapping[str, int], arithmetic: Floats = FloatArithmetic
    ) -> Any:
        """The meaning for arrays of NumPy, or of the module of another `arithmetic`: the result, or a tuple of results.

        A scalar constant is a Python number, as operand and as result.
        """
        xp = arithmetic.xp
        storage = next((a.dtype.name for a in arrays if isinstance(a, xp.ndarray)), None)
        ar = arithmetic(sizes, storage or "float64")
        with np.errstate(all="ignore"):
            given = [a.astype(ar.dtype, copy=False) for a in as_arrays(self.name, arrays, ar.storage, xp)]
            result = self.evaluate(ar, given, attrs, [a.shape for a in given])
            return xp.asarray(result).astype(ar.storage, copy=False) if storage else float(result)

    def expand(self, b: ProgramBuilder, args: Sequence[int], attrs: Attrs) -> int | None:
        """For operators defined by other operators: build them and return the result; else None."""
        return None

    def of_windows(
        self, b: ProgramBuilder, args: Sequence[int], attrs: Attrs, further: Sequence[Attrs]
    ) -> int | None:
        """The windows of the windows ... of the result (attributes of `windows` in `further`, in order), computed of windows of
        the operands; None where there is no such rule.
        """
        return None

    def gradient(self, b: Backward) -> Cotangents:
        """The cotangents of the operands, from that of the result; those of an operator with an expansion need no rule.

        Raises GradientError where there is no rule.
        """
        raise GradientError(
            f"{self.name} has no gradient; compute the result in another way, or end gradients before it with "
            "mirage.stop_gradient"
        )

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr | LoopProgram | None:
        """Its loop-level definition, which reads operand k as the tensor `xk` (see `mirage.ir.loops.program.operands`).

        A program, with the inputs `x0`, `x1`, ..., where it takes several stages. None where it has none: such an operator
        runs as a library function.
        """
        return None


def _with_unknown(node: Node, dims: Mapping[str, Node]) -> Node:
    """The node with the nodes of unknown dims in the place of the symbols that stood for them."""
    if node.kind == "dim":
        names = symbols_of(node.label)
        return node if names.isdisjoint(dims) else dims[node.label.name] if node.label.is_Symbol else Node()
    node.args = tuple(_with_unknown(a, dims) for a in node.args)
    return node


def common_dtype(args: Sequence[Annotation]) -> str | None:
    """The element type that the first tensor of known type has; None where no operand says."""
    known = (a.dtype for a in args if isinstance(a, TensorType | PartialTensor))
    return next((d for d in known if d not in (None, "scalar")), None)


@dataclass(frozen=True, eq=False)
class Elementwise(Operator):
    """An operator that acts on each element, broadcasting as NumPy does.

    `define(algebra, *operands, **attrs)` is its meaning, abstract expression, exp-degree and C code at once; `flops` its
    cost per element.
    """

    define: Callable[..., Any] = None  # type: ignore[assignment]
    flops: int = 1

    @property
    def built_in(self) -> bool:
        return self.define.__module__.startswith("mirage.")

    def infer(self, types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        return TensorType(broadcast_shapes(self.name, types), same_dtype(self.name, types))

    def coarse(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        return tensor_annotation(broadcast_partial(self.name, args), common_dtype(args))

    def relate(self, r: Relation) -> bool:
        r.same_dtype(*r.args, r.out)
        return r.elementwise(r.args)

    def apply(self, al: Algebra[Any], args: Sequence[Any], attrs: Attrs) -> Any:
        return self.define(al, *args, **attrs)

    def evaluate(
        self, ar: Arithmetic[Any], args: Sequence[Any], attrs: Attrs, shapes: Sequence[tuple[int, ...]]
    ) -> Any:
        rank = max((len(s) for s in shapes), default=0)
        return self.apply(ar, [ar.lift(x, len(s), rank) for x, s in zip(args, shapes, strict=True)], attrs)

    def gradient(self, b: Backward) -> Cotangents:
        return elementwise_gradient(b, self.define)

    def of_windows(
        self, b: ProgramBuilder, args: Sequence[int], attrs: Attrs, further: Sequence[Attrs]
    ) -> int | None:
        found = list(args)
        for window in further:
            rank = len(window["kernel"])
            types = [b.type(x) for x in found]
            space = broadcast_shapes(self.name, types)[-rank:]
            for k, t in enumerate(types):
                if t.rank >= rank and t.shape[-rank:] == space:
                    found[k] = b.op("windows", found[k], **window)
                elif not all(map(is_one, t.shape[-rank:])):
                    # along one spatial dim only
                    return None
                elif t.rank > rank:
                    found[k] = b.op("reshape", found[k], shape=(*t.shape, *t.shape[-rank:]))
        return b.op(self.name, *found, **attrs)

    def to_axes(self, low: AxisLowering, operands: Sequence[AxisTensor], attrs: Attrs, out: TensorType) -> AxisTensor:
        return low.elementwise(self.name, operands, attrs, out)

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr | LoopProgram | None:
        algebra = ScalarAlgebra(out.dtype)
        return compute(out, lambda *i: self.apply(algebra, [x.broadcast(i) for x in operands(types)], attrs))


#: operators over named axes that sum products: the two operands of each product
PRODUCTS: Mapping[str, tuple[tuple[int, int], ...]] = {"matmul": ((0, 1),), "concat_matmul": ((0, 2), (1, 3))}
#: operators over named axes that make one element of all along the axes in `reduce`
FOLDS = frozenset({"sum", "max"})
#: those, and the ones that fold products
REDUCTIONS = frozenset({*FOLDS, *PRODUCTS})
#: the parts of axes that an operator sums: one set, or one per product of a concat_matmul
Over = frozenset[str] | tuple[frozenset[str], ...]


def reduced_axes(op: str, operands: Sequence[Collection[str]], reduce: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The axes that each product of an operator sums: those of `reduce` that its two operands have.

    `operands` are the operands' axes. A sum or matmul sums all axes of `reduce`, any other operator none.
    """
    products = PRODUCTS.get(op, ())
    if len(products) < 2:
        return (tuple(reduce),)
    return tuple(tuple(a for a in reduce if a in operands[i] or a in operands[j]) for i, j in products)


def reduced_parts(
    op: str,
    operands: Sequence[Collection[str]],
    reduce: Sequence[str],
    parts: Callable[[Sequence[str]], frozenset[str]],
) -> Over:
    """What `read_operator` sums, where `parts` gives the parts of axes."""
    groups = [parts(axes) for axes in reduced_axes(op, operands, reduce)]
    return groups[0] if len(groups) == 1 else tuple(groups)


def read_operator(al: Any, op: str, attrs: Attrs, args: Sequence[Any], over: Over) -> Any:
    """An axis-level operator (sum, max, accumulator, matmul, concat_matmul or elementwise) read in a `TensorAlgebra`.

    `over` are the axis parts that it sums: a set, for a concat_matmul one per product.
    """
    if op in PRODUCTS:
        groups = over if isinstance(over, tuple) else (over,)
        products = zip(PRODUCTS[op], groups, strict=True)
        return fold(al.add, [al.sum(al.mul(args[i], args[j]), parts) for (i, j), parts in products])
    if op in ("sum", "accumulator"):
        return al.sum(args[0], over)
    if op == "max":
        return largest(al, args[0], lambda x: al.sum(x, over))
    definition = get_operator(op)
    assert isinstance(definition, Elementwise)
    return definition.apply(al, args, attrs)


REGISTRY: dict[str, Operator] = {}
AnyOperator = TypeVar("AnyOperator", bound=Operator)


def register(op: AnyOperator) -> AnyOperator:
    """Add an operator; raises DuplicateOperator if its name is taken."""
    if not op.name.isidentifier():
        raise AttributeValueError(f"operator name {op.name!r} is not an identifier; use letters, digits and _")
    if op.name in REGISTRY:
        raise DuplicateOperator(f"operator {op.name!r} is registered already; choose another name")
    REGISTRY[op.name] = op
    return op


def elementwise(
    name: str,
    define: Callable[..., Any],
    *,
    arity: int = 1,
    attributes: Sequence[Attribute] = (),
    flops: int = 1,
    takes: frozenset[str] = FLOATING,
) -> Elementwise:
    """Define and register an elementwise operator from its meaning over any algebra.

    Raises AttributeValueError for a name that is no identifier, or a definition that is no function, DuplicateOperator.
    """
    if not callable(define):
        raise AttributeValueError(
            f"operator {name!r}: its definition is {define!r}; pass a function of an algebra and the operands"
        )
    op = Elementwise(name, arity, arity, tuple(attributes), ALL_LEVELS, define, flops, takes=takes)
    register(op)
    return op


def get_operator(name: str) -> Operator:
    """The operator of that name; raises UnknownOperator with the nearest names."""
    if name in REGISTRY:
        return REGISTRY[name]
    import difflib

    near = difflib.get_close_matches(name, REGISTRY, n=3)
    advice = f"did you mean {', '.join(near)}?" if near else f"the operators are {', '.join(sorted(REGISTRY))}"
    raise UnknownOperator(f"operator {name!r} is not registered; {advice}")


def same_dtype(op: str, types: Sequence[TensorType]) -> str:
    """The common element type of the operands; scalar constants (rank 0, no dtype of their own) follow the others."""
    names = {t.dtype for t in types if t.dtype != "scalar"}
    if len(names) > 1:
        raise DTypeError(f"{op}: operands of dtypes {', '.join(sorted(names))}; convert them to one dtype first")
    return names.pop() if names else "scalar"


def broadcast_shapes(op: str, types: Sequence[TensorType]) -> tuple[sympy.Expr, ...]:
    """NumPy's broadcasting over symbolic dims: equal, or one of them literally 1."""
    rank = max(t.rank for t in types)
    shape: list[sympy.Expr] = []
    for i in range(-rank, 0):
        dims = [t.shape[i] for t in types if -i <= t.rank and not is_one(t.shape[i])]
        if any(d != dims[0] for d in dims):
            shapes = " and ".join(f"[{shape_text(t.shape)}]" for t in types)
            other = next(d for d in dims if d != dims[0])
            raise ShapeError(
                f"{op}: shapes {shapes} do not broadcast: dim {i} is {dims[0]} on one side and {other} on the other; "
                "make them equal, or one of them 1"
            )
        shape.append(dims[0] if dims else sympy.Integer(1))
    return tuple(shape)


def broadcast_partial(op: str, args: Sequence[Annotation]) -> PartialShape | None:
    """What is known of a broadcast shape: where an operand's dim is unknown, it may be 1 or what the others are.

    Raises ShapeError for known dims that do not broadcast.
    """
    shapes = [a.shape if isinstance(a, TensorType | PartialTensor) else None for a in args]
    ranked = [s for s in shapes if s is not None]
    if len(ranked) < len(shapes):
        return None
    one = sympy.Integer(1)
    result: list[sympy.Expr | None] = []
    for i in range(-max(map(len, ranked)), 0):
        dims = [s[i] for s in ranked if -i <= len(s)]
        known = {d for d in dims if d not in (None, one)}
        if len(known) > 1:
            both = " and ".join(f"[{partial_text(s)}]" for s in ranked)
            raise ShapeError(f"{op}: shapes {both} do not broadcast: dim {i} is {' or '.join(sorted(map(str, known)))}")
        dim = known.pop() if known else one
        # a number other than 1 is the result's, whether the unknown dim is 1 or that
        sure = None not in dims or (dim.is_Integer and dim != one)
        result.append(dim if sure else None)
    return tuple(result)


def is_array(a: Any) -> bool:
    """Whether an operand is an array, or a scalar of NumPy, and no Python number."""
    return hasattr(a, "dtype")


def as_arrays(op: str, arrays: Sequence[Any], dtype: np.dtype, xp: ArrayModule = np) -> list[Any]:
    """Operands as arrays of a module, Python numbers as ones of `dtype`; raises DTypeError for one that an integer type lacks."""
    found = []
    for a in arrays:
        if not is_array(a) and dtype.kind in "ib":
            low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            if a != a or not low <= a <= high or int(a) != a:
                raise DTypeError(f"{op}: {a} is no {dtype.name}; cast the tensor to a type that has it, or use another number")
        found.append(xp.asarray(a) if is_array(a) else xp.full((), a, compute_dtype(dtype)).astype(dtype, copy=False))
    return found
