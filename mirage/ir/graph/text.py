"""Graph modules as text, in Python's syntax; printing and parsing (`mirage.ir.graph.parse`) are inverse.

    rows = kernel("loops", \"\"\"...\"\"\")                          kernels first, each its kind and text

    @main                                                     where the main function has another name than main
    @attrs(origin="partition")
    def sub(x: float32[n, m], *, k: Dim) -> float32[m*n]:     extra shape parameters behind the *
        with dataflow():                                      a block of pure bindings
            v0: float32[n, m] = exp(x)                        an operator
            v1: float32[m*n] = reshape(v0, shape=(m*n,))
        v2: Object = packed["log", Object](v1)                bindings with effects stand outside of such blocks
        return v1

    class Pair(a):                                            a data type before the functions: its type parameters
        def Both(left: a, right: a): ...                      and a constructor a line

Operators are calls of a name. Every other expression has a form of its own, which no operator can have:

    float32[2](1.5, -2.0), float32[2, 3]("base64")            constants: few elements, or little-endian bytes
    [n, 2*m]   (a, b)   item[0](t)   x.shape                  shapes as values, tuples, their fields, shapes of tensors
    call[f](x, dims=(2*n,))                                   a function of the module, its extra shape arguments
    if_else[f, g](p, x, dims=(n,))
    loop[body]((a, b), (w,), count=n, bound=10)               carried, invariant; loop[body](c, (a,), ()) for a tensor c
    match_cast[float32[q]](a)
    kernel[rows, float32[n]](x, dims=(n,), workspace=(float32[n],))
    library["gemm", float32[n, m]](x, w, alpha=1/2)           name, results
    packed["append", Object, in_place[0]](cache, x)           name, result, arguments that it writes to
    shape_function["bins", 2](s)                              name, rank of the result
    Cons(x, xs)                                               a constructor
    match[Nil(): f, Cons(x, _): g](xs, y, dims=(n,))          functions of what each pattern binds, and of y
    closure[f](w, dims=(n,))                                  a function as a value, its last parameters given
    apply[f](x)                                               a call of such a value
    reference[new](x), reference[read](r)                     and reference[write](r, x)

Lines of the user's program (`where`) are not printed.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import sympy

from mirage.errors import GraphError
from mirage.ir.data import DataDeclaration
from mirage.ir.dims import Dim, dim_text
from mirage.ir.graph.nodes import (
    Atom,
    Binding,
    CallValue,
    Closure,
    Constant,
    Construct,
    Expr,
    Function,
    FunctionCall,
    If,
    KernelCall,
    LibraryCall,
    Loop,
    MakeTuple,
    Match,
    MatchCast,
    Module,
    OpCall,
    PackedCall,
    ReferenceCall,
    ShapeCall,
    ShapeOf,
    ShapeValue,
    TupleItem,
    Var,
)
from mirage.ir.operator import Attribute, get_operator
from mirage.ir.operators.in_place import EFFECTS
from mirage.ir.program import AttrItems
from mirage.ir.text import attr_text, number_text, tuple_text

#: constants of at most so many elements are printed number by number
READABLE = 16


def print_module(module: Module, *, elide: int | None = None) -> str:
    """The module as text that `parse_module` reads back.

    With `elide`, the data of constants of more elements is left out: shorter, but such text cannot be parsed.
    """
    parts = [print_declaration(d) for d in module.data.values()]
    parts += [f"{name} = kernel({_quoted(k.kind)}, {_block_text(k.to_text())})\n" for name, k in module.kernels.items()]
    for f in module:
        above = "@main\n" if f.name == module.main != "main" else ""
        parts.append(above + print_function(f, elide=elide))
    return "\n\n".join(parts)


def print_declaration(data: DataDeclaration) -> str:
    """A data type as text."""
    head = f"class {data.name}({', '.join(data.parameters)}):" if data.parameters else f"class {data.name}:"
    return "\n".join([head, *(f"    def {c}: ..." for c in data.constructors)]) + "\n"


def print_function(function: Function, *, elide: int | None = None) -> str:
    """One function as text; see `print_module`."""
    lines = [f"@attrs({', '.join(_attributes(function.attrs))})"] if function.attrs else []
    given = [f"{p.name}: {p.annotation}" for p in function.parameters]
    given += ["*", *(f"{name}: Dim" for name in function.dims)] if function.dims else []
    lines.append(f"def {function.name}({', '.join(given)}) -> {function.returns}:")
    for block in function.blocks:
        if block.dataflow:
            lines.append("    with dataflow():")
        indent = "        " if block.dataflow else "    "
        lines += [indent + print_binding(b, elide=elide) for b in block.bindings]
        if block.dataflow and not block.bindings:
            lines.append("        pass")
    lines.append(f"    return {_atom(function.result, elide)}")
    return "\n".join(lines) + "\n"


def print_binding(binding: Binding, *, elide: int | None = None) -> str:
    """One binding as a line of text."""
    return f"{binding.var.name}: {binding.var.annotation} = {_expression(binding.value, elide)}"


def _expression(expr: Expr, elide: int | None) -> str:
    def atoms(args: Iterable[Atom]) -> list[str]:
        return [_atom(a, elide) for a in args]

    match expr:
        case Var() | Constant() | ShapeValue():
            return _atom(expr, elide)
        case OpCall(op, args, attrs):
            return _call(op, [*atoms(args), *_declared(get_operator(op).attributes, attrs)])
        case FunctionCall(function, args, dims):
            return _call(f"call[{function}]", [*atoms(args), *_dims("dims", dims)])
        case KernelCall(kernel, args, out, dims, workspace):
            extra = [f"workspace={tuple_text(map(str, workspace))}"] if workspace else []
            head = f"kernel[{', '.join([kernel, *map(str, out)])}]"
            return _call(head, [*atoms(args), *_dims("dims", dims), *extra])
        case LibraryCall(function, args, out, attrs):
            head = f"library[{', '.join([_quoted(function), *map(str, out)])}]"
            return _call(head, [*atoms(args), *_attributes(attrs)])
        case PackedCall(function, args, annotation, attrs, in_place):
            written = [f"in_place[{', '.join(map(str, in_place))}]"] if in_place else []
            head = f"packed[{', '.join([_quoted(function), str(annotation), *written])}]"
            declared = _declared(EFFECTS[function].attributes, attrs) if function in EFFECTS else _attributes(attrs)
            return _call(head, [*atoms(args), *declared])
        case MakeTuple(args):
            return tuple_text(atoms(args))
        case TupleItem(args, index):
            return _call(f"item[{index}]", atoms(args))
        case ShapeOf(args):
            return f"{atoms(args)[0]}.shape"
        case ShapeCall(function, args, rank):
            return _call(f"shape_function[{_quoted(function)}, {rank}]", atoms(args))
        case If(args, then, orelse, dims):
            return _call(f"if_else[{then}, {orelse}]", [*atoms(args), *_dims("dims", dims)])
        case Loop(body, args, carried, count, bound, dims):
            first, rest = (atoms(args[:1]), args[1:]) if count is None else ([], args)
            groups = [tuple_text(atoms(rest[:carried])), tuple_text(atoms(rest[carried:]))]
            keywords = [f"{k}={dim_text(d)}" for k, d in (("count", count), ("bound", bound)) if d is not None]
            return _call(f"loop[{body}]", [*first, *groups, *keywords, *_dims("dims", dims)])
        case MatchCast(args, annotation):
            return _call(f"match_cast[{annotation}]", atoms(args))
        case Construct(args=args):
            return _call(expr.name, atoms(args))
        case Match(args, clauses, dims):
            cases = ", ".join(f"{c.pattern}: {c.function}" for c in clauses)
            return _call(f"match[{cases}]", [*atoms(args), *_dims("dims", dims)])
        case Closure(function, args, dims):
            return _call(f"closure[{function}]", [*atoms(args), *_dims("dims", dims)])
        case CallValue((called, *args)):
            return _call(f"apply[{_atom(called, elide)}]", atoms(args))
        case ReferenceCall(kind, args):
            return _call(f"reference[{kind}]", atoms(args))
    raise GraphError(f"{type(expr).__name__}: not an expression of a graph")


def _call(head: str, args: Iterable[str]) -> str:
    return f"{head}({', '.join(args)})"


def _dims(name: str, dims: tuple[Dim, ...]) -> list[str]:
    return [f"{name}={tuple_text(map(dim_text, dims))}"] if dims else []


def _atom(atom: Atom, elide: int | None) -> str:
    match atom:
        case Var(name=name):
            return name
        case ShapeValue(dims):
            return f"[{', '.join(map(dim_text, dims))}]"
    return f"{atom.annotation}({constant_text(atom.array, elide)})"


def constant_text(array: np.ndarray, elide: int | None = None) -> str:
    """The elements of a constant, exactly: numbers, or the text of the bytes in base64; `...` for elided ones."""
    if elide is not None and array.size > elide:
        return "..."
    # of 16 bits, some NaNs warn
    with np.errstate(invalid="ignore"):
        finite = bool(np.all(np.isfinite(array)))
    if 0 < array.size <= READABLE and finite:
        return ", ".join(_element(v) for v in array.ravel())
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    return f'"{base64.b64encode(little.tobytes()).decode("ascii")}"'


def _element(value: Any) -> str:
    """The shortest text that reads back as this element."""
    if value.dtype.kind in "bi":
        return str(value.item())
    # through binary64, as reading goes, a short decimal of a narrower type may round another way
    short = str(value)
    return repr(float(short)) if value.dtype.type(float(short)) == value else repr(float(value))


def _declared(attributes: Iterable[Attribute], attrs: AttrItems) -> list[str]:
    """Attributes of an operator or effect."""
    kinds = {a.name: a.kind for a in attributes}
    return [f"{k}={attr_text(kinds[k], v)}" for k, v in attrs]


def _attributes(attrs: AttrItems) -> list[str]:
    return [f"{k}={free_text(v)}" for k, v in attrs]


def free_text(value: Any) -> str:
    """The text of an attribute that no operator declares: a number, text, a dim, True or False, or a tuple of those.

    Raises GraphError for any other value.
    """
    match value:
        case bool() | int():
            return repr(value)
        case float() if math.isfinite(value):
            return repr(value)
        case str():
            return _quoted(value)
        case Fraction():
            return number_text(value)
        case sympy.Expr():
            return dim_text(value)
        case tuple():
            return tuple_text(map(free_text, value))
    raise GraphError(
        f"attribute value {value!r} of type {type(value).__name__} has no text; "
        "use finite numbers, text, dims, True or False, or tuples of those"
    )


def _escaped(text: str, kept: str = "") -> str:
    """Python's escapes for all that is not a plain character or one of `kept`."""
    plain = (c if c in kept or (c.isprintable() and c not in '\\"') else _escape(c) for c in text)
    return "".join(plain)


def _escape(c: str) -> str:
    return f"\\{c}" if c in '\\"' else c.encode("unicode_escape").decode("ascii")


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _block_text(text: str) -> str:
    """Text of several lines as a literal that keeps the lines, and quotes that do not end it."""
    body = text.rstrip('"')
    found = _escaped(body, '\n"').replace('"""', '\\"\\"\\"')
    return f'"""{found}{_escaped(text[len(body) :])}"""'
