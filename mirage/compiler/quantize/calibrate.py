"""The second step: scales, chosen from what the annotated module computes of the user's data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage.compiler.passes.rewrite import Rewriter
from mirage.compiler.quantize.annotate import Annotated
from mirage.compiler.quantize.scales import Seen, choose, powers_of_two, weight_scales
from mirage.compiler.quantize.scheme import Scheme
from mirage.errors import CalibrationError, MirageError
from mirage.ir.graph.builder import FunctionBuilder
from mirage.ir.graph.nodes import Atom, Constant, Function, MakeTuple, Module, OpCall, Var
from mirage.ir.types import TensorType, tensor

#: what makes a function of a module: given arrays in order, it gives the results of the main function
Runner = Callable[[Module], Callable[..., Any]]


@dataclass(frozen=True)
class Scale:
    """A scale with its zero point, and the element type that they are for."""

    scale: np.ndarray
    zero: np.ndarray
    dtype: str


@dataclass(frozen=True)
class Calibrated:
    """A module whose every `sim_quantize` has its scale; `activations` are those of activations, by name."""

    module: Module
    activations: Mapping[str, Scale]


def constant(array: np.ndarray) -> Constant:
    """An array in a module."""
    return Constant(array, tensor(*array.shape, dtype=array.dtype.name))


def calibrate(annotated: Annotated, scheme: Scheme, data: Sequence[Sequence[Any]], runner: Runner) -> Calibrated:
    """The annotated module with scales, those of activations chosen from its values for `data`, one sample after the other.

    Raises CalibrationError where there is no data, a sample does not fit the main function, or a value is not finite.
    """
    if not data:
        raise CalibrationError("there is no data to calibrate with; pass a few samples, each the arguments of a call")
    main = annotated.module.functions[annotated.module.main]
    names = list(annotated.activations)
    seen = {name: Seen(annotated.activations[name].name) for name in names}
    watched = list(dict.fromkeys(annotated.activations.values()))
    if watched:
        run = runner(annotated.module.with_function(returning(main, watched)))
        for k, sample in enumerate(data):
            found = dict(zip(watched, called(run, sample, k), strict=True))
            for name in names:
                seen[name].add(found[annotated.activations[name]], k)
    scales: dict[str, Scale] = {}
    power = scheme.scales == "power of two"
    r = Rewriter(main, annotated.module.functions)
    for b in main.bindings:
        value = r.current(b)
        if not isinstance(value, OpCall) or value.op != "sim_quantize":
            r.keep(b)
            continue
        attrs = dict(value.attrs)
        if b.var.name in seen:
            scale, zero = choose(seen[b.var.name], scheme.method, scheme.percentile, attrs["dtype"], power)
            scales[b.var.name] = Scale(scale, zero, attrs["dtype"])
            operands: tuple[Atom, ...] = (value.args[0], constant(scale), constant(zero))
        else:
            weight = value.args[0]
            assert isinstance(weight, Constant)
            grain = attrs["group"] or ("tensor" if scheme.weights == "tensor" else "channel")
            scales_of = weight_scales(weight.array, grain, scheme.weight_method, attrs["axis"])
            operands = (weight, constant(powers_of_two(scales_of) if power else scales_of))
        r.keep(b, OpCall("sim_quantize", operands, value.attrs))
    return Calibrated(annotated.module.with_function(r.finish()), scales)


def returning(function: Function, watched: Sequence[Atom]) -> Function:
    """The function with these values as its results, a tuple."""
    b = FunctionBuilder(function.name, {})
    b.parameters.extend(function.parameters)
    b.names.update(p.name for p in function.parameters)
    b.names.update(x.var.name for x in function.bindings)
    b.bind_all(function.bindings)
    result = b.emit(MakeTuple(tuple(watched)), name="watched")
    return b.finish(result, dims=function.dims, attrs=function.attrs)


def called(run: Callable[..., Any], sample: Sequence[Any], k: int) -> Any:
    """What a function gives for a sample of the data; raises CalibrationError, which names it, where it does not fit."""
    try:
        return run(*sample)
    except MirageError as e:
        raise CalibrationError(f"data[{k}] does not fit the program: {e}") from e


def is_float(v: Var) -> bool:
    """Whether a variable is a tensor of floating-point numbers that results can be compared of."""
    return isinstance(v.annotation, TensorType) and v.annotation.dtype.startswith(("float", "bfloat"))
