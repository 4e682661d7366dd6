"""Values that users know, as the partial evaluator has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import sympy

from mirage.compiler.partial.values import Value, operands
from mirage.errors import InputError
from mirage.ir.annotations import Annotation, PartialTensor, ShapeType
from mirage.ir.data import PRELUDE, DataDeclaration, Record
from mirage.ir.graph.deduce import deduce
from mirage.ir.graph.match import match_sizes
from mirage.ir.graph.nodes import Constant, Construct, Function, MakeTuple, Module, ShapeValue
from mirage.ir.graph.values import Where, to_value
from mirage.ir.operator import as_arrays
from mirage.ir.types import DTYPES, ELEMENTS, TensorType

#: bytes of an array that may become part of a module
MOST_BYTES = 4 << 20


def known_values(module: Module, known: Mapping[str, Any]) -> dict[str, Value]:
    """The values of parameters of the main function that are known; a type in the place of a tensor is unknown, and of this type.

    Raises InputError for a name that is no parameter, and for a value that is not of the parameter's type or cannot be part of a
    module; GuardError where two sizes do not agree.
    """
    main = module.functions[module.main]
    return _Known(main, {**PRELUDE, **module.data}).values(known)


class _Known:
    def __init__(self, main: Function, data: Mapping[str, DataDeclaration]) -> None:
        self.main = main
        self.data = data
        #: tensors that tell sizes
        self.held: list[tuple[str, Annotation, Any]] = []

    def values(self, known: Mapping[str, Any]) -> dict[str, Value]:
        parameters = {p.name: p for p in self.main.parameters}
        found = {}
        for name, value in known.items():
            if name not in parameters:
                raise InputError(f"specialize: {name!r} is no parameter of {self.main.name}; they are {', '.join(parameters)}")
            what = f"{self.main.name}: known {name!r}"
            made = to_value(parameters[name].annotation, value, self.data, what, self.leaf)
            found[name] = _of_parts(made, name)
        match_sizes(self.held, {})
        return found

    def leaf(self, annotation: Annotation, value: Any, where: Where) -> Value:
        """A value that is of no data type."""
        what = str(where)
        match annotation:
            case (TensorType() | PartialTensor()) if isinstance(value, TensorType | PartialTensor):
                return Value(value)
            case TensorType(dtype=dtype) | PartialTensor(dtype=dtype):
                array = self.array(annotation, dtype, value, what)
                self.held.append((what, annotation, array))
                constant = Constant(array, TensorType(tuple(map(sympy.Integer, array.shape)), array.dtype.name))
                return Value(constant.annotation, constant)
            case ShapeType():
                if not isinstance(value, tuple | list) or not all(isinstance(n, int | np.integer) and n >= 0 for n in value):
                    raise InputError(f"{what} is no shape; pass a tuple of integers, {annotation}")
                shape = ShapeValue(tuple(sympy.Integer(int(n)) for n in value))
                self.held.append((what, annotation, tuple(map(int, value))))
                return Value(shape.annotation, shape)
        raise InputError(f"{what} is of type {annotation}, of which no value can be part of a module; leave it an argument")

    def array(self, annotation: Annotation, dtype: str | None, value: Any, what: str) -> np.ndarray:
        """The elements of a known tensor: a copy, which nobody writes to."""
        if isinstance(value, bool | int | float):
            value = as_arrays(what, [value], ELEMENTS[dtype or "float64"])[0]
        if not isinstance(value, np.ndarray | np.generic):
            raise InputError(f"{what} is {type(value).__name__}, not {annotation}; pass an array of NumPy, or a type that it has")
        if value.dtype.name not in ELEMENTS:
            raise InputError(f"{what} has elements of {value.dtype}; convert it to one of {', '.join(DTYPES)}")
        if value.nbytes > MOST_BYTES:
            raise InputError(
                f"{what} has {value.nbytes} bytes, and at most {MOST_BYTES} become part of a module; leave it an argument, or "
                "pass its type"
            )
        array = np.array(value, order="C")
        array.setflags(write=False)
        return array


def _of_parts(made: Any, name: str) -> Value:
    """The value of records and tuples of values, once for each object. Nothing here recurs: data may be deep."""
    done: dict[int, Value] = {}
    stack = [made]
    while stack:
        v = stack[-1]
        inner = () if isinstance(v, Value) else v.fields if isinstance(v, Record) else v
        if left := [p for p in inner if id(p) not in done]:
            stack += left
            continue
        stack.pop()
        if id(v) in done:
            continue
        if isinstance(v, Value):
            v.name = name if v.name == "v" else v.name
            done[id(v)] = v
            continue
        parts = tuple(done[id(p)] for p in inner)
        form = Construct(v.data, v.index) if isinstance(v, Record) else MakeTuple(())
        made_of = Construct(form.data, form.index, operands(parts)) if isinstance(form, Construct) else MakeTuple(operands(parts))
        done[id(v)] = Value(deduce(made_of, {}), None, form, parts, name)
    return done[id(made)]

