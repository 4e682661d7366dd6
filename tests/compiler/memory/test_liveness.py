"""Lifetimes over straight lines."""

from __future__ import annotations

import pytest

from mirage.compiler.memory.buffers import Buffer
from mirage.compiler.memory.liveness import Step, analyze
from mirage.errors import GraphError
from mirage.ir.dims import to_dim


def test_memory_is_in_use_from_definition_to_last_use() -> None:
    steps = [Step(("a",), ("x",)), Step(("b",), ("a",)), Step(("c",), ("a", "b")), Step(("d",), ("c",))]
    found = analyze(steps, ["d"])
    assert found.ranges == {"a": (0, 2), "b": (1, 2), "c": (2, 3), "d": (3, 4)}
    assert found.last_use == {"x": 0, "a": 2, "b": 2, "c": 3, "d": 4}
    assert found.escaping == {"d"}


def test_views_keep_the_memory_of_their_source() -> None:
    steps = [
        Step(("a",)),
        Step(views=(("flat", ("a",)),)),
        Step(("b",)),
        Step(views=(("pair", ("flat", "b")),)),
        Step(views=(("item", ("pair",)),)),
        Step(("c",), ("item",)),
        Step(("d",), ("c",)),
    ]
    found = analyze(steps, ["d"])
    # an item of a tuple may be either of its fields
    assert found.ranges["a"] == (0, 5)
    assert found.ranges["b"] == (2, 5)
    assert "flat" not in found.ranges and found.last_use["flat"] == 3


def test_what_leaves_through_a_view_is_not_planned() -> None:
    found = analyze([Step(("a",)), Step(("b",), ("a",)), Step(views=(("t", ("b", "x")),))], ["t"])
    assert found.escaping == {"b"}
    sizes = {name: to_dim("4*n") for name in "abx"}
    assert found.buffers(sizes) == [Buffer("a", sizes["a"], 0, 1)]


def test_workspace_is_in_use_during_its_step_and_values_without_a_size_are_not_planned() -> None:
    found = analyze([Step(("a",), workspace=("w",)), Step(("b",), ("a",)), Step((), ("b",))], [])
    assert found.ranges == {"a": (0, 1), "w": (0, 0), "b": (1, 2)}
    assert [b.id for b in found.buffers({"a": to_dim(4), "w": to_dim(8)})] == ["a", "w"]


@pytest.mark.parametrize("steps", [[Step(("a",)), Step(("a",))], [Step(("b",), ("a",)), Step(("a",))]])
def test_a_name_has_one_definition_before_its_uses(steps: list[Step]) -> None:
    with pytest.raises(GraphError, match="'a' is defined twice, or used before"):
        analyze(steps, [])
