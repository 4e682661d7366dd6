"""Reading Python syntax trees: what the text forms of programs and of graph modules share.

Text is read with `ast`; nothing in it is ever executed. Errors name the line.
"""

from __future__ import annotations

import ast
from fractions import Fraction
from typing import Any, NoReturn

from mirage.errors import DTypeError, MirageError, ParseError
from mirage.ir.annotations import (
    Annotation,
    CallableType,
    DataType,
    NeverType,
    ObjectType,
    PartialShape,
    PartialTensor,
    ReferenceType,
    ShapeType,
    TupleType,
    TypeVariable,
    tensor_annotation,
)
from mirage.ir.data import RESERVED
from mirage.ir.dims import Dim, to_dim
from mirage.ir.trees import statements
from mirage.ir.types import ELEMENTS, TensorType, check_dtype


def parse_statements(text: str, most: int) -> list[ast.stmt]:
    """The statements of a text of at most so many characters; raises ParseError, with the line."""
    if len(text) > most:
        raise ParseError(f"program text of {len(text)} characters; at most {most} are parsed")
    try:
        return statements(text)
    except SyntaxError as e:
        raise ParseError(f"line {e.lineno or 1}: {e.msg}; expected Python syntax") from None
    except (ValueError, MemoryError, RecursionError):
        raise ParseError("line 1: expected Python syntax without null characters or deep nesting") from None


def expected(node: ast.AST, what: str) -> NoReturn:
    """Raises ParseError that names the line, what belongs there, and what stands there."""
    raise ParseError(f"line {getattr(node, 'lineno', 1)}: expected {what}; found {source(node)!r}")


def source(node: ast.AST) -> str:
    """The node's text, shortened; a function is named by its first line."""
    try:
        text = ast.unparse(node).splitlines()[0]
    except RecursionError:
        return "..."
    return text if len(text) <= 80 else f"{text[:77]}..."


def at(node: ast.stmt | ast.expr | ast.arg, error: MirageError) -> MirageError:
    """The error with the node's line in front, unless it names a line already."""
    text = str(error)
    return type(error)(text if text.startswith("line ") else f"line {node.lineno}: {text}")


def read_type(node: ast.expr) -> TensorType:
    """The type of a tensor of which all is known."""
    match node:
        case ast.Subscript(value=ast.Name(id=dtype), slice=ast.Tuple(elts=dims)):
            return TensorType(tuple(read_dim(d) for d in dims), read_dtype(dtype, node))
        case ast.Subscript(value=ast.Name(id=dtype), slice=dim):
            return TensorType((read_dim(dim),), read_dtype(dtype, node))
    expected(node, "a type such as float32[n, 64] or float32[()]")


_ANNOTATION = (
    "an annotation such as float32[n, 64], float32[n, _], Shape[n], Tuple[...], Object, Callable[[...], ...] or List[float32[n]]"
)


def read_annotation(node: ast.expr) -> Annotation:
    """An annotation, as `mirage.ir.annotations` writes it."""
    match node:
        case ast.Name(id="Tensor"):
            return PartialTensor()
        case ast.Name(id="Shape"):
            return ShapeType()
        case ast.Name(id="Object"):
            return ObjectType()
        case ast.Name(id="Never"):
            return NeverType()
        case ast.Name(id=name) if name[0].isupper() and name not in RESERVED:
            return DataType(name)
        case ast.Name(id=name) if name[0].islower() and name not in ELEMENTS and name != "scalar":
            return TypeVariable(name)
        case ast.Subscript(value=ast.Name(id="Ref"), slice=held):
            return ReferenceType(read_annotation(held))
        case ast.Subscript(value=ast.Name(id=name), slice=given) if name[0].isupper() and name not in RESERVED:
            return DataType(name, tuple(map(read_annotation, _items(given))))
        case ast.Subscript(value=ast.Name(id="Shape"), slice=dims):
            return ShapeType(_partial(dims))
        case ast.Subscript(value=ast.Name(id="Tuple"), slice=fields):
            return TupleType(tuple(map(read_annotation, _items(fields))))
        case ast.Subscript(value=ast.Name(id="Callable" | "Effectful" as kind), slice=ast.Tuple(elts=[given, result])):
            pure = kind == "Callable"
            if isinstance(given, ast.Constant) and given.value is ...:
                return CallableType(None, read_annotation(result), pure)
            if isinstance(given, ast.List):
                return CallableType(tuple(map(read_annotation, given.elts)), read_annotation(result), pure)
        case ast.Subscript(value=ast.Name(id="scalar"), slice=ast.Tuple(elts=[])):
            # what a scalar constant has before it meets a tensor
            return TensorType((), "scalar")
        case ast.Subscript(value=ast.Name(id="Tensor"), slice=dims):
            return PartialTensor(_partial(dims), None)
        case ast.Subscript(value=ast.Name(id=dtype), slice=dims) if dtype not in ("Callable", "Effectful"):
            return tensor_annotation(_partial(dims), read_dtype(dtype, node))
    expected(node, _ANNOTATION)


def _items(node: ast.expr) -> list[ast.expr]:
    """What stands in brackets, separated by commas."""
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _partial(node: ast.expr) -> PartialShape | None:
    """Dims, `_` for an unknown one; None for `...`."""
    if isinstance(node, ast.Constant) and node.value is ...:
        return None
    unknown = (isinstance(d, ast.Name) and d.id == "_" for d in _items(node))
    return tuple(None if u else read_dim(d) for d, u in zip(_items(node), unknown, strict=True))


def read_dtype(name: str, node: ast.expr) -> str:
    """The element type of that name, which stands at a node."""
    try:
        return check_dtype(name)
    except DTypeError as e:
        raise at(node, e) from None


def read_dim(node: ast.expr) -> Dim:
    """A dim is read by the same rules wherever it is written; see `mirage.ir.dims`."""
    try:
        return to_dim(ast.unparse(node))
    except RecursionError:
        expected(node, "a dim such as 4*n")
    except MirageError as e:
        raise at(node, e) from None


def read_attribute(kind: str, node: ast.expr, name: str) -> Any:
    """The value of an attribute of a kind; the operator checks it."""
    match kind:
        case "number":
            number = read_number(node)
            if number is None:
                expected(node, f"a number for {name}, such as 2, 0.5 or 1/3")
            return number
        case "dim":
            return read_dim(node)
        case "dims":
            # -1 is a size to infer, see `reshape`
            return tuple(-1 if repr(literal(d)) == "-1" else read_dim(d) for d in elements(node))
        case "ints":
            found = [literal(d) for d in elements(node)]
            if any(isinstance(v, bool) or not isinstance(v, int) for v in found):
                expected(node, f"integers for {name}, such as (0, 2, 1)")
            return tuple(found)
    value = literal(node)
    if value is None:
        expected(node, f"a literal for {name}")
    return value


def elements(node: ast.expr) -> list[ast.expr]:
    """The elements of a tuple or list; of anything else, itself."""
    return node.elts if isinstance(node, ast.Tuple | ast.List) else [node]


def literal(node: ast.expr) -> Any:
    """The value of a literal or of a negated number; None for anything else."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
    return None


def read_number(node: ast.expr) -> Fraction | float | int | None:
    """A number, or an exact quotient of integers; None for anything else."""
    match node:
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            a, b = literal(left), literal(right)
            return Fraction(a, b) if type(a) is int and type(b) is int and b != 0 else None
    value = literal(node)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
