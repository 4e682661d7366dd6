"""The first step: a `sim_quantize` before every operand that the rules quantize, without a scale yet.

    y = matmul(x, w)   =>   x_sim = sim_quantize(x); w_sim = sim_quantize(w); y = matmul(x_sim, w_sim)

Of the main function: what runs in branches and loops stays float.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from mirage.compiler.passes.rewrite import Rewriter, operator_call
from mirage.compiler.quantize.rules import Role, Stays, quantization_rules, roles_of
from mirage.compiler.quantize.scheme import Scheme
from mirage.ir.graph.nodes import Atom, Binding, Constant, FunctionCall, If, Loop, Module, OpCall, Var
from mirage.ir.types import TensorType

#: operators that compute nothing, or with whole numbers: a report says nothing of them
_SILENT = frozenset({"constant", "dequantize", "quantize", "quantized_matmul", "repeat", "reshape", "size", "transpose"})


@dataclass
class Annotated:
    """A module with simulated quantization.

    `activations` are the variables of those that have no scale yet, by name, and what each stands for; `layers` the results of
    operators with quantized operands.
    """

    module: Module
    activations: dict[str, Var] = field(default_factory=dict)
    layers: list[Binding] = field(default_factory=list)


def annotate(module: Module, scheme: Scheme) -> Annotated:
    """The module with `sim_quantize` where the rules want it.

    An operand that several operators read is quantized once. Raises QuantizationError for a rule that gives no roles.
    """
    main, table = module.functions[module.main], quantization_rules()
    found = Annotated(module)
    r = Rewriter(main, module.functions)
    sims: dict[tuple[Atom, Role], Var] = {}

    def simulated(b: Binding, atom: Atom, role: Role) -> Atom:
        key = atom, role
        if key not in sims:
            attrs = {"dtype": scheme.activations} if role is Role.ACTIVATION else _weight(atom, scheme)
            stem = atom.name if isinstance(atom, Var) else b.var.name
            sims[key] = r.emit(operator_call("sim_quantize", atom, **attrs), name=f"{stem}_{role.value}", where=b.where)
            if role is Role.ACTIVATION:
                assert isinstance(atom, Var)
                found.activations[sims[key].name] = atom
        return sims[key]

    for b in main.bindings:
        value = r.current(b)
        roles = roles_of(value, table) if isinstance(value, OpCall) else None
        if roles is None or isinstance(roles, Stays):
            r.keep(b)
            continue
        assert isinstance(value, OpCall)
        kept = None if scheme.activations != "float32" else Role.ACTIVATION
        args = tuple(a if role in (None, kept) else simulated(b, a, role) for a, role in zip(value.args, roles, strict=True))
        var = r.keep(b, OpCall(value.op, args, value.attrs))
        found.layers.append(Binding(var, value, b.where))
    found.module = module.with_function(r.finish())
    return found


def staying(module: Module) -> list[tuple[str, str, int]]:
    """What of a realized module is computed in floating point: operator, reason, count."""
    table = quantization_rules()
    found: Counter[tuple[str, str]] = Counter()
    for b in module.functions[module.main].bindings:
        if isinstance(b.value, FunctionCall | If | Loop):
            found["calls, branches and loops", "only the main function is quantized"] += 1
        elif isinstance(b.value, OpCall) and b.value.op not in _SILENT:
            roles = roles_of(b.value, table)
            reason = roles.reason if isinstance(roles, Stays) else "its quantization is simulated"
            found[b.value.op, reason] += 1
    return [(op, reason, n) for (op, reason), n in sorted(found.items())]


def _weight(atom: Atom, scheme: Scheme) -> dict[str, object]:
    """The attributes of a weight `[k, n]`: one scale, one per column, or one per column of each group along k."""
    t = atom.annotation
    assert isinstance(atom, Constant) and isinstance(t, TensorType)
    if isinstance(scheme.weights, int) and t.rank == 2 and t.shape[0].is_Integer and int(t.shape[0]) % scheme.weights == 0:
        return {"dtype": "int8", "axis": 0, "group": scheme.weights}
    return {"dtype": "int8", "axis": -1}
