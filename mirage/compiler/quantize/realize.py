"""The third step: simulated quantization as whole numbers.

    sim_quantize(x, scale, zero)   =>   dequantize(quantize(x, scale, zero), scale, zero)
    sim_quantize(w, scale)         =>   dequantize(int8 constant, scale)                     of a constant w

Then products and convolutions of two of these are those of whole numbers, with what follows them where they are stored
(`mirage.compiler.passes.quantized_products` and `quantized_convolutions`), as in models that came with QuantizeLinear and
DequantizeLinear.
"""

from __future__ import annotations

from mirage.compiler.context import Context
from mirage.compiler.passes import canonicalize, cse, dead_code, quantized_convolutions, quantized_products
from mirage.compiler.passes.rewrite import Rewriter, operator_call
from mirage.compiler.quantize import fixed_point
from mirage.compiler.quantize.calibrate import constant
from mirage.compiler.quantize.scales import quantized
from mirage.compiler.quantize.scheme import Scheme
from mirage.errors import QuantizationError
from mirage.ir.graph.nodes import Constant, Module, OpCall


def realize(module: Module, scheme: Scheme | None = None) -> Module:
    """The module with its main function's simulated quantization realized; scales between whole numbers are those of a scheme.

    Raises QuantizationError for a `sim_quantize` that has no scale: calibrate the module first.
    """
    main = module.functions[module.main]
    r = Rewriter(main, module.functions)
    for b in main.bindings:
        value = r.current(b)
        if not isinstance(value, OpCall) or value.op != "sim_quantize":
            r.keep(b)
            continue
        x, *scales = value.args
        if not scales:
            raise QuantizationError(f"{main.name}: {b.var.name} has no scale; calibrate the module before it is realized")
        attrs = dict(value.attrs)
        along = {key: attrs[key] for key in ("axis", "group")}
        if isinstance(x, Constant) and isinstance(scales[0], Constant) and len(scales) == 1:
            whole = constant(quantized(x.array, scales[0].array, attrs["axis"]))
            r.keep(b, operator_call("dequantize", whole, *scales, **along))
        else:
            numbers = r.emit(operator_call("quantize", x, *scales, **attrs), name=f"{b.var.name}_int", where=b.where)
            r.keep(b, operator_call("dequantize", numbers, *scales, **along))
    module = module.with_function(r.finish())
    for p in (cse.run, dead_code.run, quantized_products.run, quantized_convolutions.run, canonicalize.run, dead_code.run):
        module = p(module, Context())
    return module if scheme is None or scheme.scales == "float32" else fixed_point.run(module)
