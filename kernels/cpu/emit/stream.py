"""Results that a kernel stores past the caches where these hold neither them nor what they are computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirage.kernels.cpu.emit.layout import element_type
from mirage.kernels.cpu.emit.plan import BlockPlan, Tensor
from mirage.mugraph.graph import Role
from mirage.mugraph.thread import is_elementwise

#: what rows of a tile are multiples of, in elements: pieces of every type (MI_PIECE of mirage_stream.h)
_WHOLE = 16

LAUNCH = """\
typedef struct {
    const mirage_args *args;
    int past;                  /* whether to store results past the caches */
} mirage_launch;
"""


@dataclass(frozen=True)
class Stream:
    """Results that are stored so or not together, by node, and an input of the same axes.

    `fetched` is an input, with its node, that other operators have read by then: while results are stored past the caches, its
    next tile is fetched, as processors do not look beyond a page, and a row may be one. With two inputs that gains nothing.
    """

    results: Mapping[int, Tensor]
    source: Tensor
    fetched: tuple[int, Tensor] | None

    @property
    def axes(self) -> tuple[str, ...]:
        return next(iter(self.results.values())).axes

    def past(self, names: Mapping[str, str]) -> str:
        """C expression: whether to store them past the caches, which takes tensors without gaps, of rows of whole pieces."""
        results = list(self.results.values())
        first = results[0]
        whole = [f"{_elements(t.axes[k + 1 :], names)} == args->strides[{t.offset + k}]"
                 for t in (*results, self.source) for k in range(len(t.axes) - 1)]  # fmt: skip
        bytes_of = f"sizeof({element_type(first.narrow)})"
        rows = [f"{_elements(t.axes[-1:], names)} * {bytes_of} % MI_PIECE == 0" for t in results]
        starts = [f"(uintptr_t)args->tensors[{t.index}] % MI_PIECE == 0" for t in results[1:]]
        size = f"{_elements(first.axes, names)} * {bytes_of}"
        found = f"mi_past_caches(args->tensors[{first.index}], args->tensors[{self.source.index}], {size})"
        return " && ".join(dict.fromkeys([*whole, *rows, *starts, found]))


def _elements(axes: tuple[str, ...], names: Mapping[str, str]) -> str:
    return " * ".join(f"n_{names[a]}" for a in axes)


def find_stream(plan: BlockPlan) -> Stream | None:
    """The results of the muGraph that this kernel, if it has no products, computes element by element in whole rows, and
    does not read itself.
    """
    if plan.matmuls or any(role is Role.SPLIT for _, role in plan.graph.roles):
        return None
    found: dict[int, Tensor] = {}
    for k, (r, tensor) in enumerate(zip(plan.graph.outputs, plan.outputs, strict=True)):
        unit = next((u for u in plan.groups if r.node in u), ())
        alike = not found or set(tensor.axes) == set(next(iter(found.values())).axes)
        if unit and alike and _streams(plan, r.node, k, unit):
            found[r.node] = tensor
    axes = {frozenset(t.axes) for t in found.values()}
    # as long as a result, in bytes too: both are looked for in the caches
    wide = {t.narrow for t in found.values()}
    sources = [t for t in plan.inputs if frozenset(t.axes) in axes and not t.packed and {t.narrow} == wide]
    return Stream(found, sources[0], _fetched(plan, found)) if sources else None


def _fetched(plan: BlockPlan, results: Mapping[int, Tensor]) -> tuple[int, Tensor] | None:
    """The one input with the axes of the results, if it is contiguous as these are, and operators before these read it."""
    if plan.graph.loop or not plan.graph.grid:
        return None
    first = next(iter(results))
    earlier = [i for u in plan.groups if first not in u for i in u if i < first]
    read = {r.node for i in earlier for r in plan.graph.nodes[i].operands}
    found = {i: plan.inputs[plan.graph.nodes[i].attr["index"]] for i in plan.graph.inputs if i in read - plan.block.computed}
    alike = [(i, t) for i, t in found.items() if set(t.axes) == set(results[first].axes) and not t.packed]
    return alike[0] if len(alike) == 1 and alike[0][1].unit == results[first].unit else None


def _streams(plan: BlockPlan, i: int, k: int, unit: tuple[int, ...]) -> bool:
    tensor, n = plan.outputs[k], plan.graph.nodes[i]
    last = tensor.unit
    if (
        not tensor.result
        or not is_elementwise(n)
        or plan.looping(i)
        or plan.groups[unit].vector != last
        or last is None
    ):
        return False
    whole = plan.graph.role[last] is not Role.PARALLEL or plan.axes.tile(last) % _WHOLE == 0
    return whole and plan.memory[i].view == plan.output_view(k) and set(plan.readers(i)) <= set(unit)
