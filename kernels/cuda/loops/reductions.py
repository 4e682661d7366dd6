"""How columns become values of rows: partial results, one per column of a tile, and their reduction."""

from __future__ import annotations

from collections.abc import Sequence

from mirage.ir.loops.interpret import identity
from mirage.ir.loops.scalars import constant
from mirage.kernels.cuda.emit.values import bare
from mirage.kernels.cuda.loops.expressions import Expressions, Value
from mirage.kernels.cuda.loops.printing import parenthesized, typed
from mirage.kernels.cuda.loops.structure import Member


class Reductions:
    """Prints the reductions of members over the columns of a tile, whose values `x` prints."""

    def __init__(self, x: Expressions) -> None:
        self.x = x
        self.tile = x.tile

    def _nothing(self, m: Member) -> str:
        combiner = {"argmax": "max", "argmin": "min"}.get(m.combiner, m.combiner)
        if combiner in ("any", "all"):
            return f"tl.full([], {int(combiner == 'all')}, tl.int32)"
        return typed(constant(identity(combiner, m.body.dtype), m.body.dtype))

    def initial(self, m: Member) -> list[str]:
        """What partial results start with: of extremes' indices, 0 is the first of all."""
        shape = self.tile.shape()
        found = [self._nothing(m).replace("[]", shape, 1)]
        return [*found, f"tl.zeros({shape}, tl.int64)"] if m.place is not None else found

    def filled(self, m: Member, value: Value) -> list[str]:
        """The elements that a member reduces, with what changes nothing past the end; for extremes, with their indices."""
        text = value.text
        if m.combiner in ("any", "all"):
            text = f"{parenthesized(text)}.to(tl.int32)"
        mask = self.tile.masks.get(2)
        if mask:
            text = f"tl.where({mask}, {text}, {self._nothing(m)})"
        if (not mask and not value.span & 2) or (len(self.tile.extents) > 1 and not value.span & 1):
            text = f"tl.broadcast_to({text}, {self.tile.shape()})"
        found = [text if text.isidentifier() else self.x.assign("x", Value(text, self.tile.full())).text]
        if m.place is not None:
            found.append(f"tl.broadcast_to({bare(self.x.data(m.place).text)}, {self.tile.shape()})")
        return found

    def combined(self, m: Member, names: Sequence[str], filled: Sequence[str]) -> str:
        """Partial results and further elements."""
        a, b = names[0], filled[0]
        real = m.body.dtype.startswith("float")
        match m.combiner:
            case "sum":
                return f"{a} + {b}"
            case "prod":
                return f"{a} * {b}"
            case "any":
                return f"{a} | {b}"
            case "all":
                return f"{a} & {b}"
            case "max" | "min":
                if real:
                    return f"{self.x.helper(f'nan_{m.combiner}')}({a}, {b})"
                return f"tl.{m.combiner}imum({a}, {b})"
        return f"{self.x.helper(_first(m))}({a}, {names[1]}, {b}, {filled[1]})"

    def reduced(self, m: Member, elements: Sequence[str]) -> list[Value]:
        """The values of rows from the elements of their columns, one per column of the tile; of extremes, and their places."""
        axis = len(self.tile.extents) - 1
        a = elements[0]
        lift = "[:, None]" if axis else ""
        if m.place is not None:
            best, place = self.x.local("best"), self.x.local("place")
            self.x.w.line(f"{best}, {place} = tl.reduce(({a}, {elements[1]}), {axis}, {self.x.helper(_first(m))})")
            return [Value(best + lift, axis), self.x.assign("v", Value(place + lift, axis))]
        match m.combiner:
            case "sum":
                text = f"tl.sum({a}, axis={axis})"
            case "any" | "all":
                text = f"tl.{'max' if m.combiner == 'any' else 'min'}({a}, axis={axis})"
            case "max" | "min" if not m.body.dtype.startswith("float"):
                text = f"tl.{m.combiner}({a}, axis={axis})"
            case _:
                helper = "product" if m.combiner == "prod" else f"nan_{m.combiner}"
                text = f"tl.reduce({a}, {axis}, {self.x.helper(helper)})"
        text += lift
        if m.combiner in ("any", "all"):
            text = f"({text} != 0)"
        return [self.x.assign("v", Value(text, axis))]


def _first(m: Member) -> str:
    return f"first_{m.combiner.removeprefix('arg')}"
