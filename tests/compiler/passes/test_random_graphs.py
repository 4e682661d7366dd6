"""All passes, one behind the other, on random modules: well-formed after each, and the same values."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from mirage.compiler.context import Context
from mirage.compiler.passes import (
    batch_matmuls,
    canonicalize,
    collect_constraints,
    cse,
    dead_code,
    fold_constants,
    inline,
    lift_constants,
    lower_libraries,
    merge_matmuls,
)
from mirage.compiler.passes.in_place import written_variables
from mirage.ir.graph.check import check
from mirage.ir.graph.nodes import Atom, Binding, Block, Constant, Module
from mirage.ir.graph.traverse import with_atoms
from mirage.ir.types import TensorType
from tests.compiler.passes.test_lift_constants import run_prepared
from tests.random_graphs import Case, assert_close, random_case
from tests.sampled import thinned

PASSES = (
    canonicalize, collect_constraints, canonicalize, fold_constants, cse, dead_code, inline, canonicalize, dead_code,
    lift_constants, collect_constraints, merge_matmuls, batch_matmuls, lower_libraries, dead_code,
)  # fmt: skip


def with_constants(case: Case, rng: Random) -> Module:
    """The module in which some arguments of fixed shape are constants."""
    main = case.module.functions[case.module.main]
    written = written_variables(main, case.module.functions)
    known: dict[Atom, Atom] = {}
    for p, array in zip(main.parameters, case.args, strict=True):
        fixed = isinstance(p.annotation, TensorType) and not p.annotation.symbols() and p not in written
        if fixed and rng.random() < 0.8:
            known[p] = Constant(np.array(array), p.annotation)  # type: ignore[arg-type]
    blocks = tuple(
        Block(
            tuple(Binding(b.var, with_atoms(b.value, lambda a: known.get(a, a)), b.where) for b in block.bindings),
            block.dataflow,
        )
        for block in main.blocks
    )
    result = known.get(main.result, main.result)
    return case.module.with_function(replace(main, blocks=blocks, result=result))


def check_seed(seed: int) -> None:
    case = random_case(seed)
    rng = Random(seed)
    module = with_constants(case, rng)
    main = module.functions[module.main]
    written = written_variables(main, module.functions)
    names = tuple(p.name for p in main.parameters if p not in written and rng.random() < 0.5)
    context = Context(constants=names)
    for p in PASSES:
        module = p.run(module, context)
        check(module)
        args = case.copies()
        # sums of arrays of another layout are rounded in another order
        assert_close(case, run_prepared(module, *args), args)


@pytest.mark.parametrize("seed", thinned(range(60), 3))
def test_passes_keep_well_formedness_and_values(seed: int) -> None:
    check_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 50))
def test_many(first: int) -> None:
    for seed in range(first, first + 50):
        check_seed(seed)
