"""Drawings of modules as SVG: a flow chart per function, its operators and calls as boxes with the types of their results."""

from __future__ import annotations

from mirage.drawing.flow import Flow, to_svg
from mirage.drawing.show import View, show
from mirage.ir.annotations import Annotation, TupleType
from mirage.ir.graph.nodes import (
    Atom,
    Binding,
    CallValue,
    Closure,
    Constant,
    Construct,
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


@show.register
def _(module: Module) -> View:
    """A flow chart per function, the main one first."""
    functions = sorted(module, key=lambda f: f.name != module.main)
    return View(svg=to_svg(module.main, [_flow(f) for f in functions]))


def _flow(function: Function) -> Flow:
    flow = Flow(function.name)
    for p in function.parameters:
        flow.step("input", p.name, [str(p.annotation)], makes=[p])
    for b in function.bindings:
        _draw(flow, b)
    _literal(flow, function.result)
    flow.result(function.result, types_text(function.returns))
    return flow


def types_text(annotation: Annotation) -> list[str]:
    """The type of a value, or those of a tuple's fields."""
    return [str(f) for f in annotation.fields] if isinstance(annotation, TupleType) else [str(annotation)]


def _draw(flow: Flow, b: Binding) -> None:
    e = b.value
    for atom in e.args if not isinstance(e, Atom) else (e,):
        _literal(flow, atom)
    match e:
        case Var() | Constant() | ShapeValue():
            flow.alias(b.var, e)
            return
        case MakeTuple(args):
            flow.group(b.var, args)
            return
        case TupleItem(args, index):
            flow.item(b.var, args[0], index)
            return
        case OpCall():
            kind, title = "operator", e.op
        case KernelCall():
            kind, title = "kernel", e.kernel
        case LibraryCall():
            kind, title = "matmul", e.function
        case PackedCall():
            kind, title = "effect", e.function
        case FunctionCall():
            kind, title = "control", f"call {e.function}"
        case If():
            kind, title = "control", f"{e.then} or {e.orelse}"
        case Loop():
            kind, title = "control", f"loop of {e.body}"
        case ShapeOf():
            kind, title = "operator", "shape"
        case ShapeCall():
            kind, title = "operator", e.function
        case MatchCast():
            kind, title = "operator", "match_cast"
        case Construct():
            kind, title = "operator", e.name
        case Match(clauses=clauses):
            kind, title = "control", " or ".join(c.function for c in clauses)
        case Closure():
            kind, title = "control", f"closure of {e.function}"
        case CallValue():
            kind, title = "control", "call of a value"
        case ReferenceCall():
            kind, title = "effect", f"reference {e.kind}"
    flow.step(kind, title, types_text(b.var.annotation), e.args, [b.var])


def _literal(flow: Flow, atom: Atom) -> None:
    """Constants are boxes where they are used; shapes have no box."""
    if isinstance(atom, Constant):
        flow.step("input", "constant", [str(atom.annotation)], makes=[atom])
