"""The page of operators lists what the registry has."""

from __future__ import annotations

import re
from typing import Any

import mirage as mi
from benchmarks.operator_table import PAGE, example, tables, written
from mirage.ir.operator import REGISTRY


def test_the_tables_are_those_of_the_registry() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page), "run `make docs`"


def test_operators_of_a_user_are_not_in_the_tables() -> None:
    def squared(algebra: Any, x: Any) -> Any:
        return algebra.mul(x, x)

    mi.elementwise("table_of_a_user", squared)
    assert "table_of_a_user" in REGISTRY
    assert not any("table_of_a_user" in line for line in tables())


def test_the_text_names_functions_that_exist() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## All operators")[0]
    composed = text.partition("are made of others:")[2].partition(".")[0]
    for name in re.findall(r"`(\w+)`", composed):
        assert name in mi.__all__ and name not in REGISTRY
    effects = text.partition("`mirage.update_`")[2].partition("write to a tensor")[0]
    for name in ["update_", *re.findall(r"`(\w+)`", effects)]:
        assert name in mi.__all__


def test_examples_are_applications() -> None:
    for op in (op for op in REGISTRY.values() if op.built_in):
        args, attrs = example(op)
        op.annotate(args, attrs)
