"""Decision trees: what they decide, as text, and as JSON that is read with suspicion."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.errors import FormatError
from mirage.ir.codec import decode, encode
from mirage.kernels.decision import (
    MAX_DEPTH,
    MAX_THRESHOLD,
    Split,
    Tree,
    check_tree,
    decide,
    leaves,
    relabel,
    rename,
)
from tests.kernels.trees import SYMBOLS, numbers, trees

TREE = Split(("b",), 8, Split(("b", "t"), 4096, 0, 1), Split(("b",), 64, 2, 0))


@pytest.mark.parametrize(
    ("sizes", "version"),
    [((1, 1), 0), ((8, 512), 0), ((8, 513), 1), ((1, 4097), 1), ((9, 1), 2), ((64, 9999), 2), ((65, 1), 0)],
)
def test_a_split_includes_its_threshold(sizes: tuple[int, int], version: int) -> None:
    assert decide(TREE, {"b": sizes[0], "t": sizes[1]}) == version


def test_every_leaf_says_where_it_applies() -> None:
    assert list(leaves(TREE)) == [
        ("b <= 8, b * t <= 4096", 0),
        ("b <= 8, b * t > 4096", 1),
        ("8 < b <= 64", 2),
        ("b > 64", 0),
    ]
    assert list(leaves(3)) == [("all sizes", 3)]
    assert list(leaves(Split(("t",), 64, Split(("t",), 8, 0, 1), 2))) == [
        ("t <= 8", 0),
        ("8 < t <= 64", 1),
        ("t > 64", 2),
    ]


@given(trees(), st.tuples(numbers, numbers, numbers))
def test_the_text_of_the_leaf_that_is_decided_for_is_true(tree: Tree, values: tuple[int, ...]) -> None:
    sizes = dict(zip(SYMBOLS, values, strict=True))

    def holds(text: str) -> bool:
        if text == "all sizes":
            return True
        for part in text.split(", "):
            words = part.split()
            low = words.index("<") if "<" in words else -1
            at = words.index("<=") if "<=" in words else words.index(">")
            product = 1.0
            for name in words[low + 1 : at]:
                product *= float(sizes[name]) if name != "*" else 1.0
            if low > 0 and not product > int(words[0]):
                return False
            if words[at] == "<=" and not product <= int(words[-1]):
                return False
            if words[at] == ">" and not product > int(words[-1]):
                return False
        return True

    assert [version for text, version in leaves(tree) if holds(text)] == [decide(tree, sizes)]


@given(trees(), st.tuples(numbers, numbers, numbers))
def test_relabelled_and_renamed_trees_decide_alike(tree: Tree, values: tuple[int, ...]) -> None:
    labels = {v: 7 - v for v in range(8)}
    sizes = dict(zip(SYMBOLS, values, strict=True))
    assert decide(relabel(tree, labels), sizes) == labels[decide(tree, sizes)]
    names = {s: s + "_2" for s in SYMBOLS}
    assert decide(rename(tree, names), {names[s]: n for s, n in sizes.items()}) == decide(tree, sizes)


def test_equal_sides_become_one_leaf() -> None:
    assert relabel(Split(("b",), 8, 0, Split(("t",), 4, 1, 2)), {0: 0, 1: 0, 2: 0}) == 0
    assert relabel(TREE, {0: 5, 1: 5, 2: 6}) == Split(("b",), 8, 5, Split(("b",), 64, 6, 5))


def dense(tree: Tree) -> tuple[Tree, int]:
    """The tree with versions 0, 1, 2, ..., and their number."""
    labels = {v: i for i, v in enumerate(dict.fromkeys(v for _, v in leaves(tree)))}
    found = relabel(tree, labels)
    return found, len(set(v for _, v in leaves(found)))


def read(obj: Any, versions: int = 2) -> Tree:
    tree: Tree = decode(Stored, {"tree": obj}, "decision").tree
    check_tree(tree, SYMBOLS, versions)
    return tree


@dataclass(frozen=True)
class Stored:
    tree: Tree


@given(trees())
def test_json_and_back(tree: Tree) -> None:
    tree, count = dense(tree)
    assert read(json.loads(json.dumps(encode(Stored(tree))))["tree"], count) == tree


def split(**changes: Any) -> dict[str, Any]:
    return {"dims": ["b"], "threshold": 8, "below": 0, "above": 1} | changes


def deep(levels: int) -> Any:
    return split(above=deep(levels - 1)) if levels else 1


WRONG: list[tuple[Any, str]] = [
    *((x, "decision.tree: expected") for x in [None, True, 0.0, "0", [0], dict[str, Any]()]),
    (2, "version 0 is at no leaf"),
    (-1, "version -1 is not one of 2"),
    (10**400, "version 0 is at no leaf"),
    (0, "version 1 is at no leaf"),
    (split(below=1), "version 0 is at no leaf"),
    (split(below=2), "version"),
    (split(more=1), "decision.tree: expected"),
    ({k: v for k, v in split().items() if k != "above"}, "decision.tree: expected"),
    *((split(dims=d), "dims") for d in (None, "b", [], ["x"], [1], [["b"]], ["b", "s", "t"], ["b", None])),
    *(
        (split(threshold=n), "decision.tree.threshold: expected")
        for n in (None, True, 0, -3, 8.0, float("inf"), float("nan"), "8", 2**53 + 1)
    ),
    (split(threshold=10**400), "threshold: expected"),
    (deep(MAX_DEPTH + 1), f"more than {MAX_DEPTH} comparisons"),
    (deep(100), f"more than {MAX_DEPTH} comparisons"),
]


@pytest.mark.parametrize(("obj", "message"), WRONG, ids=range(len(WRONG)))
def test_other_json_is_a_format_error(obj: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message) as e:
        read(obj)
    assert len(str(e.value)) < 600


def test_the_largest_tree() -> None:
    assert read(deep(MAX_DEPTH))
    assert read(split(threshold=MAX_THRESHOLD))
