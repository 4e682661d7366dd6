"""Functions that carry their argument types and the sizes they are used at."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mirage.drawing.show import Displayed
from mirage.errors import DimError, InputError, TraceError
from mirage.frontends.trace import program_name, trace
from mirage.ir.program import Program
from mirage.ir.types import TensorType

Sizes = dict[str, int]


@dataclass(frozen=True, eq=False)
class TensorFunction(Displayed, drawn_by="mirage.frontends.draw"):
    """A Python function over tensors with the types of its parameters and named sets of sizes.

    `sizes["decode"]["t"]` is the size of dim symbol `t` in the set `decode`, in elements. `constants` are the parameters whose
    contents never change between calls, such as weights.
    """

    name: str
    fn: Callable[..., Any]
    specs: Mapping[str, TensorType]
    sizes: Mapping[str, Sizes]
    constants: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """The first paragraph of the function's docstring."""
        return " ".join((inspect.getdoc(self.fn) or "").split("\n\n")[0].split())

    @property
    def symbols(self) -> list[str]:
        """Names of the symbolic dims."""
        return sorted(set().union(*(t.symbols() for t in self.specs.values())))

    def trace(self) -> Program:
        """The program; raises what `mirage.trace` raises."""
        return trace(self.fn, self.name, **self.specs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The plain function, so that one traced function can use another."""
        return self.fn(*args, **kwargs)


def program(
    *,
    sizes: Mapping[str, int] | Mapping[str, Mapping[str, int]] | None = None,
    constants: Collection[str] = (),
    **specs: TensorType,
) -> Callable[[Callable[..., Any]], TensorFunction]:
    """Decorator: `@program(x=tensor("b", 4096), sizes={"b": 1})`.

    `sizes` binds every dim symbol, once (the set "default"), or in several named sets:
    `{"decode": {"s": 1}, "prefill": {"s": 512}}`. `constants` names parameters whose contents never change between calls
    (see `superoptimize`). Raises DimError for a symbol without size or a size without symbol, InputError for a constant that is
    no parameter.
    """

    def decorate(fn: Callable[..., Any]) -> TensorFunction:
        if not callable(fn) or isinstance(fn, TensorFunction):
            raise TraceError(f"program: {fn!r} is not a plain function; decorate a function, once")
        f = TensorFunction(program_name(fn), fn, specs, _size_sets(sizes), check_constants("program", constants, specs))
        for label, values in f.sizes.items():
            _check_sizes(f, label, values)
        return f

    for name, spec in specs.items():
        if not isinstance(spec, TensorType):
            raise TraceError(f"program: {name}={spec!r} is not a tensor type; pass {name}=tensor(...)")
    return decorate


def check_constants(what: str, constants: Any, inputs: Collection[str]) -> tuple[str, ...]:
    """The names, in the order of the inputs; raises InputError, which begins with `what`, for any that is not one of these."""
    if isinstance(constants, str) or not isinstance(constants, Collection):
        raise InputError(f"{what}: constants={constants!r} is not a collection of names; pass constants=('w',) for input 'w'")
    for name in constants:
        if name not in inputs:
            raise InputError(f"{what}: constant {name!r} is not an input; the inputs are {', '.join(inputs)}")
    return tuple(name for name in inputs if name in constants)


def _size_sets(sizes: Mapping[str, Any] | None) -> dict[str, Sizes]:
    if not sizes:
        return {}
    nested = {isinstance(v, Mapping) for v in sizes.values()}
    if len(nested) > 1:
        raise DimError(f"sizes={sizes!r} mixes sizes and sets of sizes; give one mapping, or named mappings")
    return {k: dict(v) for k, v in sizes.items()} if nested.pop() else {"default": dict(sizes)}


def _check_sizes(f: TensorFunction, label: str, values: Sizes) -> None:
    for symbol in f.symbols:
        if symbol not in values:
            raise DimError(f"{f.name}: sizes {label!r} lack dim {symbol!r}; add {symbol!r}: SIZE")
    for symbol, size in values.items():
        if symbol not in f.symbols:
            known = ", ".join(f.symbols) or "all literal"
            raise DimError(f"{f.name}: sizes {label!r} name {symbol!r}, but the dims are {known}; remove it")
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise DimError(f"{f.name}: sizes {label!r}: {symbol}={size!r} is not a size; use an integer >= 0")
