"""The operators of upstream files and what they are here."""

from __future__ import annotations

from dataclasses import dataclass

from mirage.errors import FormatError

#: elementwise operators, after `kn_` or `tb_` and before `_op`
ELEMENTWISE = {
    **{name: name for name in ("exp", "square", "sqrt", "silu", "sigmoid", "gelu", "relu", "clamp")},
    **{name: name for name in ("add", "mul", "div", "sub")},
    "mul_scalar": "mul",
}
BINARY = frozenset({"add", "mul", "div", "sub"})

#: accumulators, after `tb_accum_` or, in newer files, `tb_forloop_accum_`
ACCUMULATORS = frozenset({"nored", "red_ld_sum", "red_ld_mean", "red_ld_rms", "redtox_ld_sum"})


@dataclass(frozen=True)
class Name:
    """An operator's kind and what the name says besides: the dim it acts on, or the accumulator's mode."""

    kind: str
    detail: str = ""

    @property
    def dim(self) -> int:
        return int(self.detail)


def parse_name(op: str, level: str, where: str) -> Name:
    """The operator named `op` at a level, "kn" or "tb"; raises FormatError for one that is not read."""
    name = op.removeprefix(f"{level}_").removesuffix("_op")
    if op == f"{level}_{name}_op":
        if name in ("input", "output", "matmul", "rms_norm") or name in ELEMENTWISE:
            return Name(name)
        if level == "kn" and name == "customized":
            return Name(name)
        if level == "tb" and name == "concat_then_matmul":
            return Name(name)
        for prefix in ("accum_", "forloop_accum_"):
            if level == "tb" and name.removeprefix(prefix) in ACCUMULATORS and name.startswith(prefix):
                return Name("accumulator", name.removeprefix(prefix))
        for kind in ("reduction", "concat"):
            rest = name.removeprefix(f"{kind}_")
            if rest != name and (dim := rest.removesuffix("_to_dimx")).isdigit() and len(dim) == 1:
                if rest == dim or (kind == "reduction" and level == "tb"):
                    return Name(kind if rest == dim else "reduction_to_dimx", dim)
    raise FormatError(f"{where}: operator {op!r} is not one that is read here; express the graph without it")
