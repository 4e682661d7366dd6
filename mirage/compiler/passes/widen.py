"""What is computed once of constants, in float64, and rounded once: a step of `lift_constants`.

    a = mul(w, g)                       v = cast(w, float64)
    b = mul(a, s)               ->      a = mul(v, cast(g, float64))
                                        b = cast(mul(a, cast(s, float64)), float32)

Fused kernels convert elements in passing, so that elementwise values need no more memory; factors of products are copied.
What is rounded once already stays as it is. So does what other operators read, such as the ones that quantize: they have to
agree with whoever rounds in between, as the standard does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mirage.compiler.passes.rewrite import operator_call
from mirage.ir.graph.builder import FunctionBuilder
from mirage.ir.graph.nodes import Atom, Binding, OpCall, Var
from mirage.ir.graph.traverse import variables, with_atoms
from mirage.ir.types import TensorType

_NARROW = ("float16", "bfloat16", "float32")
#: operators that round nothing, those that round each element once, and those that round each sum many times
_EXACT = ("neg", "reshape", "transpose", "broadcast_to", "slice", "concat")
_ROUNDED = ("add", "sub", "mul", "div", "square", "sqrt", "rsqrt", "exp", "log", "pow")
_SUMS = ("sum", "mean", "matmul")
#: elements of a factor or result of a product, beyond which it stays: its float64 copies would have more than 128 MiB each
_MOST_ELEMENTS = 1 << 24


def emit_widened(
    bindings: Sequence[Binding], results: Sequence[Var], parameters: Mapping[Var, Var], builder: FunctionBuilder
) -> list[Var]:
    """The results, emitted into a function with these parameters: in float64 where they would be rounded several times."""
    roundings = _roundings(bindings)
    widened = {v for v in results if roundings.get(v, 0) > 1}
    in_wide, in_plain = _needed(bindings, widened, set(results) - widened, roundings)
    wide: dict[Atom, Atom] = {}
    plain = dict(parameters)

    def read(a: Atom) -> Atom:
        return plain.get(a, a) if isinstance(a, Var) else a

    def read_wide(a: Atom) -> Atom:
        if a not in wide:
            narrow = isinstance(a.annotation, TensorType) and a.annotation.dtype in _NARROW
            wide[a] = builder.emit(operator_call("cast", read(a), dtype="float64")) if narrow else read(a)
        return wide[a]

    def rounded(v: Var) -> Var:
        assert isinstance(v.annotation, TensorType)
        return builder.emit(operator_call("cast", wide[v], dtype=v.annotation.dtype), name=v.name)

    for b in bindings:
        if b.var in in_plain:
            value = with_atoms(b.value, read)
            plain[b.var] = builder.emit(value, name=b.var.name, annotation=b.var.annotation, where=b.where)
        if b.var in in_wide:
            wide[b.var] = builder.emit(with_atoms(b.value, read_wide), name=b.var.name, where=b.where)
    return [rounded(v) if v in widened else plain[v] for v in results]


def _roundings(bindings: Sequence[Binding]) -> dict[Var, int]:
    """How often a value that may be computed in float64 is rounded on its way from others, at most; 2 for any more."""
    found: dict[Var, int] = {}
    for b in bindings:
        if _may_be_wide(b):
            assert isinstance(b.value, OpCall)
            own = 0 if b.value.op in _EXACT else 1 if b.value.op in _ROUNDED else 2
            found[b.var] = min(2, own + max((found.get(v, 0) for v in variables(b.value)), default=0))
    return found


def _may_be_wide(b: Binding) -> bool:
    out = b.var.annotation
    if not isinstance(b.value, OpCall) or b.value.op not in (*_EXACT, *_ROUNDED, *_SUMS):
        return False
    tensors = [a.annotation for a in b.value.args if isinstance(a.annotation, TensorType)]
    if not isinstance(out, TensorType) or out.dtype not in _NARROW:
        return False
    copied = [*tensors, out] if b.value.op == "matmul" else []
    return all(t.dtype in (out.dtype, "scalar") for t in tensors) and not any(map(_is_large, copied))


def _is_large(t: TensorType) -> bool:
    count = 1
    for d in t.shape:
        count *= int(d) if d.is_Integer else 1
    return count > _MOST_ELEMENTS


def _needed(
    bindings: Sequence[Binding], widened: Collection[Var], plain: Collection[Var], may_be_wide: Mapping[Var, int]
) -> tuple[set[Var], set[Var]]:
    """What is computed in float64, and what as it is, for such results; some is both."""
    wide, narrow = set(widened), set(plain)
    for b in reversed(bindings):
        read = set(variables(b.value))
        if b.var in wide:
            wide |= read & may_be_wide.keys()
            narrow |= read - may_be_wide.keys()
        if b.var in narrow:
            narrow |= read
    return wide, narrow
