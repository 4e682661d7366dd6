"""`mirage.quantize`: a program as products of 8-bit integers, with scales chosen from the user's data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mirage.compilation import compile, is_onnx, to_module
from mirage.compiler.context import Context
from mirage.compiler.passes import (
    canonicalize,
    collect_constraints,
    cse,
    dead_code,
    fold_constants,
    fold_scales,
    inline,
    join_offsets,
)
from mirage.compiler.quantize.annotate import Annotated, annotate, staying
from mirage.compiler.quantize.calibrate import Calibrated, calibrate, called, constant, is_float, returning
from mirage.compiler.quantize.realize import realize
from mirage.compiler.quantize.report import Difference, Layer, Quantized, Report
from mirage.compiler.quantize.scheme import Scheme
from mirage.errors import CalibrationError, InputError, QuantizationError
from mirage.frontends.imported import Imported
from mirage.ir.annotations import Annotation
from mirage.ir.graph.builder import FunctionBuilder
from mirage.ir.graph.check import check
from mirage.ir.graph.nodes import PACKAGES, Atom, Module, OpCall, TupleItem, Var
from mirage.ir.graph.traverse import rename
from mirage.ir.types import TensorType

#: the passes before a program is annotated: calls are inlined, what is computed of weights alone is a weight, and so are the
#: factors of convolutions
PREPARED = (
    canonicalize.run,
    inline.run,
    collect_constraints.run,
    canonicalize.run,
    fold_constants.run,
    join_offsets.run,
    dead_code.run,
    fold_scales.run,
    dead_code.run,
    join_offsets.run,
    fold_constants.run,
    cse.run,
    dead_code.run,
)


def quantize(
    program: Any,
    data: Sequence[Any],
    *,
    specs: Mapping[str, Annotation] | None = None,
    weights: Mapping[str, Any] | None = None,
    scheme: Scheme | None = None,
    dynamic: bool = True,
) -> Quantized:
    """A program with its products in 8-bit integers.

    `program` is what `mirage.compile` takes: a Python function with `specs`, a module, its text, a model of ONNX or the path of
    its file; or a model of PyTorch (`torch.nn.Module`), which is exported. `weights` are the arrays of parameters that never
    change, by name; models of ONNX and PyTorch have their own. `data` are samples to calibrate with: each is the array that a
    call takes, or a tuple of them, or a mapping by name. `scheme` says what to quantize to, and how scales are chosen. With
    `dynamic`, the sizes of a model of PyTorch are symbols, as far as `torch.export` lets them be.

    What has no rule (`mirage.register_quantization`) stays float, and the report says so. Raises CalibrationError for data that
    scales cannot be chosen from, QuantizationError for a program without one array among its inputs, InputError for weights that
    do not fit, and what `mirage.compile` raises for a program outside of the IR.
    Source: Relay, section 4.2.
    """
    scheme = scheme or Scheme()
    module, samples = _prepared(program, data, specs, weights or {}, dynamic)
    check(module)
    for p in PREPARED:
        module = p(module, Context())
    annotated = annotate(module, scheme)
    calibrated = calibrate(annotated, scheme, samples, _runner)
    realized = realize(calibrated.module, scheme)
    check(realized)
    report = _report(module, annotated, calibrated, realized, samples, scheme)
    return Quantized(realized, calibrated.module, report)


def _runner(module: Module) -> Callable[..., Any]:
    """The module as a function: compiled without a search, which a few calls are not worth."""
    return compile(module, without=("superoptimize",), cache=False)


def _report(
    module: Module,
    annotated: Annotated,
    calibrated: Calibrated,
    realized: Module,
    samples: Sequence[Sequence[Any]],
    scheme: Scheme,
) -> Report:
    """How far the calibrated module's layers, and the realized one's results, are from those of the float module."""
    main = module.functions[module.main]
    layers: list[Layer] = []
    before = {b.var.name: b.var for b in main.bindings}
    simulated = calibrated.module.functions[calibrated.module.main]
    after = {b.var.name: b for b in simulated.bindings}
    for b in annotated.layers:
        call = after[b.var.name].value
        assert isinstance(call, OpCall)
        own = [calibrated.activations[a.name] for a in call.args if isinstance(a, Var) and a.name in calibrated.activations]
        layer = Layer(b.var.name, call.op, b.where, Difference())
        if own:
            layer.scale, layer.zero = float(own[0].scale), int(own[0].zero)
        layers.append(layer)
    watched = [layer for layer in layers if is_float(before[layer.name])]
    result = Difference()
    float_run = _runner(module.with_function(returning(main, [*(before[x.name] for x in watched), main.result])))
    layer_run = _runner(calibrated.module.with_function(returning(simulated, [after[x.name].var for x in watched])))
    realized_run = _runner(realized)
    for k, sample in enumerate(samples):
        *wanted, last = called(float_run, sample, k)
        for layer, x, found in zip(watched, wanted, called(layer_run, sample, k), strict=True):
            layer.difference.add(found, x)
        for x, found in zip(_floats(last), _floats(realized_run(*sample)), strict=True):
            result.add(found, x)
    products = [b.value for b in realized.functions[realized.main].bindings if isinstance(b.value, OpCall)]
    whole = [c for c in products if c.op in ("quantized_matmul", "quantized_convolution")]
    return Report(
        str(scheme), layers, result, staying(realized),
        {name: (float(s.scale), int(s.zero)) for name, s in calibrated.activations.items()},
        len(whole), sum(dict(c.attrs)["dtype"] != "float32" for c in whole),
    )  # fmt: skip


def _floats(results: Any) -> list[np.ndarray]:
    """The arrays of floating-point numbers among results."""
    if isinstance(results, tuple | list):
        return [a for r in results for a in _floats(r)]
    return [results] if isinstance(results, np.ndarray) and results.dtype.kind in "fV" else []


def _prepared(
    program: Any, data: Sequence[Any], specs: Any, weights: Mapping[str, Any], dynamic: bool
) -> tuple[Module, list[Sequence[Any]]]:
    """The module of a program with its weights as constants, and the samples in the order of its parameters."""
    if not isinstance(data, Sequence):
        data = list(data)
    if not len(data):
        raise CalibrationError("there is no data to calibrate with; pass a few samples, each the arguments of a call")
    names: Sequence[str] | None = None
    is_torch = any(c.__module__.startswith("torch.nn") for c in type(program).__mro__)
    if is_onnx(program) or is_torch:
        if specs is not None or weights:
            raise InputError("specs and weights have no meaning for a model: its types are known, and its weights are its own")
        if is_torch:
            from mirage.torch.quantization import imported_model

            imported, arrays, data = imported_model(program, data, dynamic)
        else:
            from mirage.onnx.quantization import imported_model as imported_onnx

            imported, arrays, names = imported_onnx(program)
        module = _selected(imported)
    else:
        module, arrays = to_module(program, specs), {n: np.asarray(w) for n, w in weights.items()}
    module = with_constants(module, arrays)
    parameters = module.functions[module.main].parameters
    if not parameters:
        raise QuantizationError("the program has no input but its weights; there is nothing to calibrate with data")
    order = names if names is not None else [p.name for p in parameters]
    return module, [_sample(one, k, order, len(parameters)) for k, one in enumerate(data)]


def _sample(one: Any, k: int, names: Sequence[str], count: int) -> Sequence[Any]:
    """A sample as arguments in order."""
    if isinstance(one, Mapping):
        if set(one) != set(names):
            raise CalibrationError(f"data[{k}] has {', '.join(map(str, one))}; the inputs are {', '.join(names)}")
        return [one[n] for n in names]
    found = one if isinstance(one, tuple | list) else (one,)
    if len(found) != count:
        raise CalibrationError(f"data[{k}] has {len(found)} arrays, and the program takes {count}: {', '.join(names)}")
    return found


def with_constants(module: Module, arrays: Mapping[str, np.ndarray]) -> Module:
    """The module with arrays in place of parameters of its main function; raises InputError for what does not fit."""
    main = module.functions[module.main]
    known = {p.name: p for p in main.parameters}
    new: dict[Var, Atom] = {}
    for name, array in arrays.items():
        if name not in known:
            raise InputError(f"weights: {name!r} is no parameter of {main.name}; they are {', '.join(known)}")
        t = known[name].annotation
        if not isinstance(t, TensorType) or t.dtype != array.dtype.name or t.rank != array.ndim:
            raise InputError(f"weights: {name!r} is {array.dtype.name}{list(array.shape)}, not {t}")
        if any(d.is_Integer and d != n for d, n in zip(t.shape, array.shape, strict=True)):
            raise InputError(f"weights: {name!r} is {array.dtype.name}{list(array.shape)}, not {t}")
        if any(not d.is_Integer for d in t.shape):
            raise InputError(f"weights: {name!r} is {t}; give the parameters of weights sizes that are numbers")
        new[known[name]] = constant(np.ascontiguousarray(array))
    b = FunctionBuilder(main.name, module.functions)
    for p in main.parameters:
        if p not in new:
            b.parameter(p.name, p.annotation)
            b.parameters[-1] = p
    b.bind_all(rename(x, new) for x in main.bindings)
    result = new.get(main.result, main.result) if isinstance(main.result, Var) else main.result
    return module.with_function(b.finish(result, dims=main.dims, attrs=main.attrs))


def _selected(imported: Imported) -> Module:
    """The module of a model with the model's outputs as results: the only one, or a tuple.

    It is a program of no package from here on: kernels of whole numbers run on the threads of the pool, which those of another
    library would keep waiting.
    """
    main = imported.module.functions[imported.module.main]
    own = replace(main, attrs=tuple(pair for pair in main.attrs if pair[0] != PACKAGES))
    module = imported.module.with_function(own)
    if not all(isinstance(o, int) for o in imported.outputs):
        raise QuantizationError("an output of the model is an input or a constant; leave it out, and quantize the rest")
    main = module.functions[module.main]
    numbers = [o for o in imported.outputs if isinstance(o, int)]
    if len(numbers) != 1 or not isinstance(main.result, Var):
        return module
    b = FunctionBuilder(main.name, module.functions)
    b.parameters.extend(main.parameters)
    b.names.update(p.name for p in main.parameters)
    b.bind_all(main.bindings)
    item = b.emit(TupleItem((main.result,), numbers[0]), name="result")
    return module.with_function(b.finish(item, dims=main.dims, attrs=main.attrs))

