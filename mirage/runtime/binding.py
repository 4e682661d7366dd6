"""From the shapes of arguments to the sizes of the dim symbols."""

from __future__ import annotations

from collections.abc import Sequence

from mirage.errors import InputError
from mirage.ir.dims import evaluate, solve
from mirage.ir.program import Program


class SizeBinder:
    """Binds the dim symbols of a program; remembers the shapes it has seen."""

    LIMIT = 1024

    def __init__(self, program: Program) -> None:
        self.program = program
        self._seen: dict[tuple[tuple[int, ...], ...], dict[str, int]] = {}

    def bind(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """Sizes for shapes of the right ranks; raises InputError naming the input, the dim, and both sizes."""
        key = tuple(shapes)
        found = self._seen.get(key)
        if found is None:
            found = self._solve(key)
            if len(self._seen) >= self.LIMIT:
                self._seen.clear()
            self._seen[key] = found
        return found

    def _solve(self, shapes: tuple[tuple[int, ...], ...]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        names, types = self.program.input_names, self.program.input_types
        open_ = [(k, i, d) for k, t in enumerate(types) for i, d in enumerate(t.shape) if not d.is_Integer]
        # plain symbols first: they make products such as 4*n checks instead of equations
        open_.sort(key=lambda item: not item[2].is_Symbol)
        while open_:
            rest = []
            for k, i, d in open_:
                if all(s.name in sizes for s in d.free_symbols):
                    continue
                solved = solve(d, shapes[k][i], sizes)
                if solved is None:
                    rest.append((k, i, d))
                else:
                    sizes[solved[0]] = solved[1]
            if len(rest) == len(open_):
                k, i, d = rest[0]
                raise InputError(
                    f"{self.program.name}: input {names[k]!r}, dim {i}: no size of {sorted(s.name for s in d.free_symbols)} "
                    f"makes {d} equal {shapes[k][i]}"
                )
            open_ = rest
        for name, t, shape in zip(names, types, shapes, strict=True):
            for i, (d, n) in enumerate(zip(t.shape, shape, strict=True)):
                if evaluate(d, sizes) != n:
                    bound = ", ".join(f"{s}={v}" for s, v in sizes.items()) or "no symbols"
                    raise InputError(
                        f"{self.program.name}: input {name!r} has shape {list(shape)}: dim {i} is {n}, but {d} is "
                        f"{evaluate(d, sizes)} here ({bound}); make the dims agree"
                    )
        return sizes
