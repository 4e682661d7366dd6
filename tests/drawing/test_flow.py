"""Flow charts of modules and compiled programs: well-formed SVG with a box for all that runs."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import mirage as mi
from mirage.drawing.flow import Flow, to_svg
from mirage.drawing.show import picture
from mirage.ir.types import TensorType

PIECES = {
    "x": mi.tensor("n", 4), "w": mi.tensor(4, "m"), "steps": mi.tensor(dtype="int64"), "cache": mi.tensor("n", "m"),
}  # fmt: skip


def program(x: Any, w: Any, steps: Any, cache: Any) -> Any:
    """A product, a loop, a branch, an effect, an operator of NumPy and two results."""
    y = mi.loop(steps, lambda i, c: c / 2 + 1, mi.exp(x) @ w, bound=9)
    y = mi.cond(y.sum() > 1, lambda: y - 1, lambda: y)
    cache = mi.update_(cache, y, start=(0, 0))
    return cache, mi.unique(y)


def texts(svg: str) -> list[str]:
    return [e.text or "" for e in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def arrows(svg: str) -> int:
    return svg.count("marker-end")


def test_a_module_is_drawn() -> None:
    svg = picture(mi.trace_module(program, PIECES))
    shown = texts(svg)
    for title in (
        "program",
        "x",
        "steps",
        "exp",
        "matmul",
        "loop of body",
        "then or orelse",
        "update",
        "unique",
        "result 0",
        "body",
    ):
        assert any(t.startswith(title) for t in shown), (title, shown)
    assert shown.count("float32[n, m]") >= 5
    assert shown.index("program") < shown.index("body")
    assert svg == picture(mi.trace_module(program, PIECES))


def test_an_executable_is_drawn_with_what_runs(cache_dir: Any) -> None:
    fast = mi.compile(program, PIECES, without=("superoptimize",), bounds={"n": 8, "m": 8})
    svg = picture(fast)
    shown = texts(svg)
    for name in (*fast.kernels, "blas.matmul", "unique", "loop of body", "then or orelse", "n <= 8, m <= 8", "result 1"):
        assert name in shown or name == "n <= 8, m <= 8", (name, shown)
    assert any("n <= 8" in t and "m <= 8" in t for t in shown)
    assert arrows(svg) >= 9


def test_literal_results_have_boxes() -> None:
    module = mi.trace_module(lambda x: (x, np.ones(3, np.float32)), {"x": mi.tensor("n")})
    assert {"constant", "float32[3]", "result 0", "result 1"} <= set(texts(picture(module)))


def test_values_pass_tuples_and_names() -> None:
    flow = Flow("f")
    flow.step("input", "a", makes=["a"])
    flow.step("operator", "f", reads=["a"], makes=["b"])
    flow.group("t", ["a", "b"])
    flow.alias("u", "t")
    flow.item("c", "u", 1)
    flow.step("operator", "g", reads=["c"], makes=["d"])
    flow.result("d")
    # a -> f -> g -> result: none from a to g
    assert arrows(to_svg("f", [flow])) == 3


def test_a_tuple_that_a_step_makes_is_its_result() -> None:
    flow = Flow("f")
    flow.step("control", "call g", makes=["t"])
    flow.item("a", "t", 1)
    flow.result("a", [str(TensorType((), "float32"))])
    assert arrows(to_svg("f", [flow])) == 1


@pytest.mark.parametrize("text", ["<&>\"'", "a\x00b", "x" * 500, " ".join(["word"] * 200)])
def test_any_text_is_drawn(text: str) -> None:
    flow = Flow(text, text)
    flow.step("effect", text, [text])
    svg = to_svg(text, [flow])
    assert text.replace("\x00", "�") in texts(svg)
    # long text of a box is cut
    assert sum(t.startswith("word word") for t in texts(svg)) < 30


def test_no_functions_and_no_steps_are_drawn() -> None:
    assert "kernel" in texts(to_svg("empty", []))
    assert "f" in texts(to_svg("empty", [Flow("f")]))
