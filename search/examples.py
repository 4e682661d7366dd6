"""Examples of what each rule of a search prunes.

A search counts what it prunes and keeps none of it. Where somebody wants to see, the closures are built once more, with a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from mirage.errors import TermTooLarge
from mirage.ir.axes import AxisProgram
from mirage.ir.dims import evaluate
from mirage.search.options import SearchOptions
from mirage.search.pruned import Examples, Pruned
from mirage.search.space import Space

#: steps of the closures, a value each, that are looked at
STEPS = 5_000


def pruning_examples(program: AxisProgram, sizes: Mapping[str, int], steps: int = STEPS) -> dict[str, list[Pruned]]:
    """By rule, examples of what a search of a program at these sizes (dim symbol -> elements) prunes, with the default options.

    The closures are built for so many steps, a value each. A program whose expressions are too large has no examples.
    """
    examples = Examples()
    table = {axis: evaluate(size, sizes) for axis, size in program.axes.items()}
    try:
        space = Space(program, table, SearchOptions(), examples)
        for _ in islice(space.close(), steps):
            pass
    except TermTooLarge:
        return {}
    return examples.found
