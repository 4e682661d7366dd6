"""The first step: a `sim_quantize` before every operand that the rules quantize, without a scale yet.

    y = matmul(x, w)   =>   x_sim = sim_quantize(x); w_sim = sim_quantize(w); y = matmul(x_sim, w_sim)

What a convolution's result is added to, and means of such results, read quantized tensors as well, so that only these are
stored between convolutions; zeros around a tensor are added once it is quantized. Of the main function: what runs in branches
and loops stays float.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from mirage.compiler.passes.rewrite import Rewriter, operator_call
from mirage.compiler.quantize.rules import Role, Stays, quantization_rules, roles_of
from mirage.compiler.quantize.scheme import WHOLE, Scheme
from mirage.ir.graph.nodes import Atom, Binding, Constant, Expr, FunctionCall, If, Loop, Module, OpCall, Var
from mirage.ir.operators.quantization import QUANTIZED
from mirage.ir.types import TensorType

#: operators that compute nothing, or with whole numbers: a report says nothing of them
_SILENT = frozenset(
    {"constant", "dequantize", "quantize", "quantized_convolution", "quantized_matmul", "repeat", "reshape", "size", "transpose"}
)
#: what follows a convolution and is computed where its result is stored
_FOLLOWING = frozenset({"add", "elementwise_max", "elementwise_min", "max_pool", "pad", "relu"})


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
    convolved = _Convolved()

    def simulated(b: Binding, atom: Atom, role: Role) -> Atom:
        key = atom, role
        zeros = r.definitions.get(atom) if isinstance(atom, Var) and role is Role.ACTIVATION else None
        if key not in sims and isinstance(zeros, OpCall) and zeros.op == "pad" and dict(zeros.attrs)["value"] == 0:
            inner = simulated(b, zeros.args[0], role)
            sims[key] = r.emit(OpCall("pad", (inner,), zeros.attrs), where=b.where)
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
            also = convolved.read_quantized(value) if scheme.activations in WHOLE else None
            if isinstance(value, OpCall) and also is not None:
                args = tuple(simulated(b, a, Role.ACTIVATION) if a == also else a for a in value.args)
                value = OpCall(value.op, args, value.attrs)
            convolved.follow(r.keep(b, value), value, also)
            continue
        assert isinstance(value, OpCall)
        kept = None if scheme.activations != "float32" else Role.ACTIVATION
        args = tuple(a if role in (None, kept) else simulated(b, a, role) for a, role in zip(value.args, roles, strict=True))
        var = r.keep(b, OpCall(value.op, args, value.attrs))
        found.layers.append(Binding(var, value, b.where))
        if value.op == "convolution":
            convolved.add(var)
    found.module = module.with_function(r.finish())
    return found


@dataclass
class _Convolved:
    """Results of convolutions, and of what follows them; those of which only a constant has been added, in their order."""

    results: set[Var] = field(default_factory=set)
    sums: dict[Var, int] = field(default_factory=dict)

    def add(self, var: Var) -> None:
        """A convolution."""
        self.results.add(var)
        self.sums[var] = len(self.sums)

    def read_quantized(self, value: Expr) -> Var | None:
        """The operand that an operator without a rule reads quantized: what is added to a convolution, or a mean's operand."""
        if not isinstance(value, OpCall):
            return None
        read = [a for a in value.args if isinstance(a, Var)]
        if value.op == "mean":
            return next((a for a in read if a in self.results), None)
        if value.op != "add" or len(read) != 2 or read[0].annotation != read[1].annotation:
            return None
        last = max((a for a in read if a in self.sums), key=lambda a: self.sums[a], default=None)
        return next((a for a in read if a != last), None) if last is not None else None

    def follow(self, var: Var, value: Expr, quantized: Var | None) -> None:
        """An operator that has been kept as `var`, and which of its operands is quantized."""
        if not isinstance(value, OpCall) or value.op not in _FOLLOWING:
            return
        known = [a for a in value.args if isinstance(a, Var) and a in self.results]
        if known:
            self.results.add(var)
        others = [a for a in value.args if a not in known]
        summed = [a for a in known if a in self.sums]
        if value.op == "add" and quantized is None and summed and all(isinstance(a, Constant) for a in others):
            self.sums[var] = self.sums[summed[0]]


def staying(module: Module) -> list[tuple[str, str, int]]:
    """What of a realized module is computed in floating point: operator, reason, count."""
    table = quantization_rules()
    found: Counter[tuple[str, str]] = Counter()
    for b in module.functions[module.main].bindings:
        if isinstance(b.value, FunctionCall | If | Loop):
            found["calls, branches and loops", "only the main function is quantized"] += 1
        elif isinstance(b.value, OpCall) and b.value.op not in _SILENT and not _is_whole(b.var):
            roles = roles_of(b.value, table)
            reason = roles.reason if isinstance(roles, Stays) else "its quantization is simulated"
            found[b.value.op, reason] += 1
    return [(op, reason, n) for (op, reason), n in sorted(found.items())]


def _is_whole(var: Var) -> bool:
    return isinstance(var.annotation, TensorType) and var.annotation.dtype in QUANTIZED


def _weight(atom: Atom, scheme: Scheme) -> dict[str, object]:
    """The attributes of a weight `[k, n]`: one scale, one per column, or one per column of each group along k."""
    t = atom.annotation
    assert isinstance(atom, Constant) and isinstance(t, TensorType)
    if t.rank > 2:
        # of a convolution, with outputs in front
        return {"dtype": "int8", "axis": 0}
    if isinstance(scheme.weights, int) and t.rank == 2 and t.shape[0].is_Integer and int(t.shape[0]) % scheme.weights == 0:
        return {"dtype": "int8", "axis": 0, "group": scheme.weights}
    return {"dtype": "int8", "axis": -1}
