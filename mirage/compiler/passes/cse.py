"""Common subexpressions: what a function computes twice is computed once. Constants are equal by content."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from mirage.compiler.context import Context
from mirage.compiler.passes.in_place import written_variables
from mirage.compiler.passes.rewrite import Rewriter
from mirage.ir.graph.effects import is_pure
from mirage.ir.graph.nodes import Atom, Constant, Expr, Function, Module, ShapeValue, Var
from mirage.ir.graph.order import callees_first
from mirage.ir.graph.traverse import atoms, variables, with_atoms
from mirage.ir.types import TensorType


def run(module: Module, context: Context) -> Module:
    """The module without common subexpressions, callees before callers."""
    functions = dict(module.functions)
    contents: dict[int, tuple[np.ndarray, str]] = {}
    for name in callees_first(module):
        functions[name] = share(functions[name], functions, contents)
    return Module(functions, module.kernels, module.main)


def share(
    function: Function, functions: Mapping[str, Function], contents: dict[int, tuple[np.ndarray, str]] | None = None
) -> Function:
    """The function in which equal expressions are one binding, whatever effects are between them.

    A value that an effect may write to stays on its own. A cast that is made twice is checked once. `contents` keeps the
    hashes of arrays, by identity, between calls.
    """
    hashes = {} if contents is None else contents
    r = Rewriter(function, functions)
    written = {v.name for v in written_variables(function, functions)}
    first: dict[Hashable, Var] = {}
    #: numbers have no memory: what reads them computes them, and finds them in its own block
    numbers: dict[Atom, Expr] = {}
    for block in function.blocks:
        here: dict[Hashable, Var] = {}
        for b in block.bindings:
            for v in variables(b.value):
                if (number := numbers.get(r.read(v))) is not None:
                    if number not in here:
                        here[number] = r.emit(number, name=v.name)
                        numbers[here[number]] = number
                    r.replace(v, here[number])
            value = r.current(b)
            if {b.var.name, *(v.name for v in variables(value))} & written or not is_pure(value, functions):
                r.keep(b, value)
                continue
            is_number = isinstance(b.var.annotation, TensorType) and b.var.annotation.dtype == "scalar"
            known, key = (here, value) if is_number else (first, _key(value, hashes, numbers))
            if key in known:
                r.replace(b.var, known[key])
                continue
            known[key] = r.keep(b, value)
            if is_number:
                numbers[known[key]] = value
    return r.finish()


def _key(value: Expr, contents: dict[int, tuple[np.ndarray, str]], numbers: Mapping[Atom, Expr]) -> Hashable:
    operands = tuple(numbers[a] if isinstance(a, Var) and a in numbers else _content(a, contents) for a in atoms(value))
    # the contents of constants, and numbers, stand beside the expression
    return operands, with_atoms(value, lambda a: _ANY if isinstance(a, Constant) or a in numbers else a)


_ANY = ShapeValue(())


def _content(atom: Atom, contents: dict[int, tuple[np.ndarray, str]]) -> Any:
    if not isinstance(atom, Constant):
        return atom
    if id(atom.array) not in contents:
        digest = hashlib.sha256(atom.array.tobytes()).hexdigest()
        # the array is kept with it, so that its identity stays its own
        contents[id(atom.array)] = atom.array, digest
    return str(atom.annotation), contents[id(atom.array)][1]
