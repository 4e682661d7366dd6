"""The operators of a search: those of the program, and those that it has room for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mirage as mi
from mirage.errors import SearchError
from mirage.ir.axes import to_axes
from mirage.mugraph.whole import whole_program
from mirage.search.algebras import Algebras
from mirage.search.generate import SearchResult, generate
from mirage.search.options import SearchOptions
from mirage.search.vocabulary import Vocabulary
from mirage.verify.equivalence import Verifier

T = mi.tensor


def table(fn: Callable[..., Any], **specs: Any) -> Vocabulary:
    program = to_axes(mi.trace(fn, **specs))
    algebras = Algebras(program, {})
    return Vocabulary.table(program, [algebras.targets[o.value][1] for o in program.outputs])


def product(x: Any, w: Any) -> Any:
    return mi.sum(mi.reshape(x, ("b", 32, 1)) * mi.reshape(w, (1, 32, "n")), axis=1)


SPECS: dict[str, Any] = {"x": T("b", 32), "w": T(32, "n")}


def search(fn: Callable[..., Any], sizes: dict[str, int], vocabulary: str, **specs: Any) -> SearchResult:
    return generate(to_axes(mi.trace(fn, **specs)), sizes, SearchOptions(vocabulary=vocabulary, budget=600))


def test_a_sum_of_products_is_found_as_a_matmul() -> None:
    sizes = {"b": 64, "n": 64}
    own, wide = (search(product, sizes, v, **SPECS) for v in ("program", "table"))
    assert own.stats.stop_reason == wide.stats.stop_reason == "complete"
    operators = [{n.op for g in r.graphs for n in whole_program(g).nodes} for r in (own, wide)]
    assert ["matmul" in ops for ops in operators] == [False, True]
    verifier = Verifier(mi.trace(product, **SPECS))
    assert all(verifier.admit(g).verdict == "proved equal" for g in wide.graphs)
    assert min(wide.costs) < min(own.costs)


def test_a_sum_of_a_product_is_found_as_a_product_of_sums() -> None:
    specs = {"a": T("m", 32), "b": T(32, "n")}
    own, wide = (
        search(lambda a, b: mi.sum(mi.sum(a @ b, axis=1), axis=0), {"m": 256, "n": 256}, v, **specs)
        for v in ("program", "table")
    )
    assert min(wide.costs) <= min(own.costs)


def test_operators_are_added_where_the_program_has_room_for_them() -> None:
    ops = table(lambda x, y: x - y, x=T("n"), y=T("n"))
    assert {op for op, _ in ops.binary} == {"sub", "add", "mul"} and ops.inside == {"mul"}
    assert {op for op, _ in table(lambda x: mi.exp(x), x=T("n")).binary} == set()
    assert {op for op, _ in table(mi.softmax, x=T("n", 8)).binary} == {"div"}
    assert table(lambda x, w: x @ w, x=T("m", 8), w=T(8, "n")).sums == (("d8",),)


def test_a_program_keeps_its_own_operators() -> None:
    program = to_axes(mi.trace(product, **SPECS))
    own = Vocabulary.of(program)
    wide = table(product, **SPECS)
    assert set(own.binary) <= set(wide.binary) and set(own.unary) == set(wide.unary) and own.matmuls == ()
    assert wide.matmuls == own.sums and wide.inside == frozenset()


def test_stages_are_the_program_s_operators_and_then_the_others_of_the_table_once() -> None:
    program = to_axes(mi.trace(lambda a, b: mi.sum(mi.sum(a @ b, axis=1), axis=0), a=T("m", 32), b=T(32, "n")))
    algebras = Algebras(program, {})
    polys = [algebras.targets[o.value][1] for o in program.outputs]
    stages, whole = Vocabulary.stages(program, polys), Vocabulary.table(program, polys)
    assert stages[0] == Vocabulary.of(program)
    assert sorted(name for stage in stages for name in stage.names) == sorted(whole.names)
    # what saves an axis comes first
    assert [stage.names for stage in stages[1:]] == [
        ("sum over d32", "matmul over n", "matmul over m"), ("mul",),
    ]  # fmt: skip
    assert stages[-1].inside == whole.inside == {"mul"}


def test_an_unknown_vocabulary_is_refused() -> None:
    with pytest.raises(SearchError, match="vocabulary='all' must be"):
        SearchOptions(vocabulary="all").check()
