"""Convolutions channel by channel take along the products before and behind them, as blocks of MobileNet have these.

    a = library["cpu.convolution", float32[b, 192, h, w]](x, first, first_packed, packed=True, most=6.0)
    b = library["cpu.convolution", float32[b, 192, h, w]](a, w, w_packed, groups=192, packed=True, ...)
    c = library["cpu.convolution", float32[b, 32, h, w]](b, second, second_packed, y, other=True, packed=True)

becomes one call, in which no tensor of 192 channels is ever whole:

    c = library["cpu.separable_convolution", float32[b, 32, h, w]](x, first_packed, w, second_packed, y, first=True, ...)

Only products of few channels: of more, what is between takes little of the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mirage.compiler.context import Context
from mirage.compiler.passes.rewrite import Rewriter, reshaped
from mirage.ir.graph.nodes import Atom, Binding, Expr, Function, LibraryCall, Module, OpCall, Var
from mirage.ir.graph.traverse import uses
from mirage.ir.types import TensorType
from mirage.kernels.cpu.launch.separable import RANK

_CONVOLUTION = "cpu.convolution"
#: channels that both products have on their other side, at most: from there on, joined calls gain nothing
FEW = 192


def run(module: Module, context: Context) -> Module:
    functions = {f.name: join(f, module.functions) for f in module}
    return Module(functions, module.kernels, module.main)


def join(function: Function, functions: Mapping[str, Function]) -> Function:
    """The function with joined convolutions; itself where it has none."""
    found, gone = _found(function)
    if not found:
        return function
    r = Rewriter(function, functions)
    for b in function.bindings:
        if b.var in found:
            r.replace(b.var, found[b.var].emit(r, b))
        elif b.var not in gone:
            r.keep(b)
    return r.finish()


@dataclass(frozen=True)
class _Convolution:
    """A packed call: its operands behind the weights by their names, and its attributes."""

    call: LibraryCall
    x: Atom
    w: Atom
    packed: Atom
    rest: Mapping[str, Atom]
    attrs: Mapping[str, Any]

    @classmethod
    def of(cls, value: Expr | None) -> _Convolution | None:
        if not isinstance(value, LibraryCall) or value.function != _CONVOLUTION:
            return None
        attrs = dict(value.attrs)
        if not attrs.get("packed"):
            return None
        x, w, packed, *rest = value.args
        names = [name for name in ("bias", "other") if attrs.get(name)]
        return cls(value, x, w, packed, dict(zip(names, rest, strict=True)), attrs)

    @property
    def weights(self) -> tuple[int, ...]:
        """The literal dims of the weights; () where one is not literal."""
        t = self.w.annotation
        known = isinstance(t, TensorType) and all(d.is_Integer and d > 0 for d in t.shape)
        return tuple(map(int, t.shape)) if isinstance(t, TensorType) and known else ()

    def is_product(self) -> bool:
        """Whether it is a product at each place, without strides."""
        return bool(self.weights) and "strides" not in self.attrs and set(self.weights[2:]) <= {1}

    def is_alone(self) -> bool:
        """Whether every channel has one result of its own, and nothing but a bias is added."""
        w = self.weights
        alone = bool(w) and w[1] == 1 and "strides" in self.attrs and self.attrs["groups"] == w[0]
        return alone and len(self.attrs["strides"]) <= RANK and "other" not in self.rest

    def named(self, part: str, weight: str) -> tuple[dict[str, Atom], dict[str, Any]]:
        """Operands and attributes as those of a part of the joined call, whose names begin so."""
        operands = {weight: self.w if weight == "w" else self.packed}
        operands |= {f"{part}{name}" if name == "bias" else name: a for name, a in self.rest.items()}
        kept = {name: self.attrs[name] for name in ("least", "most") if name in self.attrs}
        return operands, {f"{part}{name}": value for name, value in kept.items()}


@dataclass(frozen=True)
class _Joined:
    """A convolution of single channels, and the products before and behind it that there are."""

    first: _Convolution | None
    between: _Convolution
    second: _Convolution | None

    def emit(self, r: Rewriter, b: Binding) -> Atom:
        """What stands for the result of the last call."""
        (inner,) = self.between.call.out
        source, x = self.between.x.annotation, (self.first or self.between).x
        assert isinstance(source, TensorType) and isinstance(x.annotation, TensorType)
        operands: dict[str, Atom] = {"x": reshaped(r.read(x), (*x.annotation.shape[:2], *source.shape[2:]), r.emit)}
        attrs = {name: self.between.attrs[name] for name in ("strides", "dilations", "low")}
        for part, weight, c in (("first_", "first", self.first), ("", "w", self.between), ("second_", "second", self.second)):
            if c is not None:
                given, bounds = c.named(part, weight)
                operands |= {name: r.read(a) for name, a in given.items()}
                attrs |= bounds
        last = self.second or self.between
        out = TensorType((*last.call.out[0].shape[:2], *inner.shape[2:]), inner.dtype)
        # operands come in the order of the parts, and what else is added comes last: only the last part has it
        attrs |= {name: True for name in operands if name not in ("x", "w")}
        call = LibraryCall("cpu.separable_convolution", tuple(operands.values()), (out,), tuple(attrs.items()))
        joined = r.emit(call, name=b.var.name, where=b.where)
        return reshaped(joined, last.call.out[0].shape, r.emit)


def _found(function: Function) -> tuple[dict[Var, _Joined], set[Var]]:
    """Joined convolutions by the results of their last calls, and what no longer is computed."""
    counts = uses(function)
    found: dict[Var, _Joined] = {}
    gone: set[Var] = set()
    for block in function.blocks:
        made = {b.var: b.value for b in block.bindings} if block.dataflow else {}
        for b in reversed(block.bindings):
            if b.var in gone or b.var not in made:
                continue
            joined = _joined(b.value, made, counts)
            if joined is not None:
                found[b.var] = joined[0]
                gone |= joined[1]
    return found, gone


def _joined(value: Expr, made: Mapping[Var, Expr], counts: Counter[Var]) -> tuple[_Joined, set[Var]] | None:
    """What a call joins with those before it, and the results between."""
    last, inner = _Convolution.of(value), set[Var]()
    second = between = None
    if last is not None and last.is_product():
        second, (between, passed) = last, _before(last, made, counts)
        inner |= passed
    elif last is not None:
        between = last
    if between is None or not between.is_alone():
        return None
    first, passed = _before(between, made, counts)
    if first is not None and (not first.is_product() or "other" in first.rest):
        first, passed = None, set()
    channels = (first.weights[1] if first else 0) + (second.weights[0] if second else 0)
    if not (first or second) or channels > FEW:
        return None
    return _Joined(first, between, second), inner | passed


def _before(c: _Convolution, made: Mapping[Var, Expr], counts: Counter[Var]) -> tuple[_Convolution | None, set[Var]]:
    """The convolution whose result this one alone reads, at places that may be counted in other dims, and what is between."""
    passed: set[Var] = set()
    x, read = c.x, c.x.annotation
    while isinstance(x, Var) and counts[x] == 1 and x in made:
        passed.add(x)
        value = made[x]
        if isinstance(value, OpCall) and value.op == "reshape":
            x = value.args[0]
            continue
        before = _Convolution.of(value)
        alike = before is not None and isinstance(read, TensorType) and before.call.out[0].shape[:2] == read.shape[:2]
        return (before, passed) if alike else (None, set())
    return None, set()
