"""Drawings of saturated e-graphs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import mirage as mi
from benchmarks import drawings
from mirage.drawing.show import picture
from mirage.ir.axes import to_axes
from mirage.verify.rules.saturate import saturate
from mirage.verify.rules.terms import Terms, read

N = mi.tensor("n")


def drawn(fn: Callable[..., Any], **specs: Any) -> str:
    program = to_axes(mi.trace(fn, **specs))
    terms = Terms(program.axes)
    return picture(saturate(terms, read(terms, program).outputs, seconds=60))


def test_each_class_is_a_box_with_its_terms() -> None:
    svg = drawn(lambda x, y: mi.exp(x) * mi.exp(y), x=N, y=N)
    texts = re.findall(r">([^<>]+)</text>", svg)
    assert "7 terms in 6 classes; saturated" in texts
    assert {"c0", "x", "c4", "exp(c5)", "mul(c2, c3)", "add(c0, c1)", "result"} <= set(texts)
    # of inputs and classes to those that are made of them, and to the result
    assert svg.count("marker-end") >= 7


def test_classes_that_no_output_depends_on_are_left_out() -> None:
    svg = drawn(lambda x, y: x * mi.exp(y) / mi.exp(y), x=N, y=N)
    assert ">result</text>" in svg and ">x</text>" in svg
    # a class may be made of itself: x is x * 1
    assert re.search(r">mul\(c\d+, c\d+\)</text>", svg)


def test_the_picture_of_the_documentation_is_current() -> None:
    file = drawings.FIGURES / f"{drawings.CLASSES}-classes.svg"
    assert file.read_text(encoding="utf-8") == drawings.saturated(drawings.CLASSES)
