"""The largest of few elements, and what is put at their places, as comparisons: a device has no kernel that orders.

    values, chosen = topk(x, k)        ->      rank = sum(x[j] goes before x[i], over j)
                                               chosen = sum(i where rank[i] == r, over i), for r below k; values likewise
    put_along_axis(base, chosen, v)    ->      where(any(chosen[r] == i, over r), sum(v[r] where chosen[r] == i, over r), base)

Each element is compared with all others of its row: that is fused with what is around it, and a CUDA graph can record it. On a
processor, `topk` is a function of its library.
"""

from __future__ import annotations

from mirage.compiler.context import Context
from mirage.compiler.passes.rewrite import OperatorWriter, Rewriter
from mirage.ir.dims import Dim, to_dim
from mirage.ir.graph.nodes import Atom, Binding, Function, MakeTuple, Module, OpCall, TupleItem, Var
from mirage.ir.types import DTYPES, TensorType

#: elements of a row that are compared with one another, at most
MOST = 64
_ONE = to_dim(1)


def run(module: Module, context: Context) -> Module:
    """The module without such calls, for targets that have no library function for them."""
    if context.kernels.on_host:
        return module
    functions = {name: _Ranked(f, module).result() for name, f in module.functions.items()}
    return Module(functions, module.kernels, module.main)


class _Ranked(OperatorWriter):
    """Rewrites a function; itself where there is nothing of the kind."""

    def __init__(self, function: Function, module: Module) -> None:
        super().__init__(Rewriter(function, module.functions))
        self.function = function
        #: variables of the old function that are places which `topk` gave, distinct and in range
        self.places: set[Var] = set()

    def result(self) -> Function:
        topk = {b.var: b.value for b in self.function.bindings if _is_topk_of_few(b)}
        if not topk:
            return self.function
        for b in self.function.bindings:
            self.where = b.where
            value = b.value
            if isinstance(value, TupleItem) and value.index == 1 and value.args[0] in topk:
                self.places.add(b.var)
            if b.var in topk:
                assert isinstance(value, OpCall)
                self.r.keep(b, MakeTuple(self._topk(value)))
            elif isinstance(value, OpCall) and self._puts_at_places(value):
                self.r.replace(b.var, self._put(value))
            else:
                self.r.keep(b)
        return self.r.finish()

    def _topk(self, call: OpCall) -> tuple[Atom, Atom]:
        x, attrs = self.r.read(call.args[0]), dict(call.attrs)
        shape = _shape(x)
        n, k, rows = shape[-1], attrs["k"], shape[:-1]
        element, other = self.reshape(x, (*rows, n, _ONE)), self.reshape(x, (*rows, _ONE, n))
        place, earlier = (self.numbers(n, s) for s in ((n, _ONE), (_ONE, n)))
        before = self.op("less", *((element, other) if attrs["largest"] else (other, element)))
        same = self.op("equal", element, other)
        if _dtype(x) in DTYPES:
            # NaNs are the largest
            nan, other_nan = self.op("isnan", element), self.op("isnan", other)
            first, last = (other_nan, nan) if attrs["largest"] else (nan, other_nan)
            before = self.op("logical_or", before, self.op("logical_and", first, self.op("logical_not", last)))
            same = self.op("logical_or", same, self.op("logical_and", nan, other_nan))
        before = self.op("logical_or", before, self.op("logical_and", same, self.op("less", earlier, place)))
        rank = self.op("sum", self.op("cast", before, dtype="int64"), axes=(len(rows) + 1,), keepdims=True)
        wanted = self.numbers(k, (_ONE, k))
        chosen = self.op("equal", rank, wanted)
        return self._picked(chosen, element, len(rows)), self._picked(chosen, place, len(rows))

    def _put(self, call: OpCall) -> Atom:
        base, places, values = map(self.r.read, call.args)
        shape, chosen = _shape(base), _shape(places)
        rows, k = chosen[:-1], chosen[-1]
        place = self.numbers(shape[-1], (_ONE, shape[-1]))
        here = self.op("equal", self.reshape(places, (*rows, k, _ONE)), place)
        put = self._picked(here, self.reshape(values, (*rows, k, _ONE)), len(rows))
        return self.op("where", self.op("any", here, axes=(len(rows),)), put, base)

    def _picked(self, here: Atom, values: Atom, axis: int) -> Atom:
        """The one value that is here along an axis."""
        zero = self.op("full", value=0, shape=(), dtype=_dtype(values))
        return self.op("sum", self.op("where", here, values, zero), axes=(axis,))

    def _puts_at_places(self, call: OpCall) -> bool:
        """Whether it puts as many values at the places of a `topk` along the last axis of few elements."""
        if call.op != "put_along_axis" or call.args[1] not in self.places or dict(call.attrs)["add"]:
            return False
        shapes = [a.annotation.shape for a in call.args if isinstance(a.annotation, TensorType)]
        if len(shapes) < 3 or shapes[1] != shapes[2] or shapes[0][:-1] != shapes[1][:-1]:
            return False
        return _is_few(call, shapes[0])


def _shape(atom: Atom) -> tuple[Dim, ...]:
    assert isinstance(atom.annotation, TensorType)
    return atom.annotation.shape


def _dtype(atom: Atom) -> str:
    assert isinstance(atom.annotation, TensorType)
    return atom.annotation.dtype


def _is_topk_of_few(b: Binding) -> bool:
    if not isinstance(b.value, OpCall) or b.value.op != "topk" or not isinstance(b.value.args[0].annotation, TensorType):
        return False
    return dict(b.value.attrs)["k"].is_Integer and _is_few(b.value, b.value.args[0].annotation.shape)


def _is_few(call: OpCall, shape: tuple[Dim, ...]) -> bool:
    """Whether a call is along the last axis, and that is short."""
    return dict(call.attrs)["axis"] in (-1, len(shape) - 1) and bool(shape[-1].is_Integer and shape[-1] <= MOST)
