"""Decision trees over the sizes of dims: which version of a program runs where.

A leaf is the index of a version. A split compares a dim, or the product of two dims, with a threshold: tiles and splits
pay off from some number of rows, elements or bytes on, which dims and their products measure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from mirage.errors import FormatError
from mirage.ir.codec import within
from mirage.ir.dims import Dim

#: comparisons on the longest way to a leaf: at most 8 leaves
MAX_DEPTH = 3
#: every number of elements that a dim may have, and exact as a double
MAX_THRESHOLD = 2**53
Size: TypeAlias = Annotated[int, within(1, MAX_THRESHOLD)]
#: dim symbol -> elements
Sizes: TypeAlias = Mapping[str, Size]


@dataclass(frozen=True)
class Limit:
    """A version serves sizes at which `value`, the size of an axis or of a block's part of a split one, is at most `most`
    elements.
    """

    axis: str
    value: Dim
    most: int


@dataclass(frozen=True)
class Split:
    """`below` where the product of the sizes of `dims` (one dim, or two) is at most `threshold`, else `above`."""

    dims: tuple[str, ...]
    threshold: Size
    below: Tree
    above: Tree

    def __str__(self) -> str:
        return f"{' * '.join(self.dims)} <= {self.threshold}"

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether `below` applies at these sizes (dim symbol -> elements)."""
        if len(self.dims) == 1:
            return sizes[self.dims[0]] <= self.threshold
        # as C computes it, where a product of whole numbers could overflow
        return float(sizes[self.dims[0]]) * float(sizes[self.dims[1]]) <= self.threshold


Tree: TypeAlias = int | Split


def decide(tree: Tree, sizes: Mapping[str, int]) -> int:
    """The version for these sizes (dim symbol -> elements)."""
    while isinstance(tree, Split):
        tree = tree.below if tree.holds(sizes) else tree.above
    return tree


def leaves(tree: Tree) -> Iterator[tuple[str, int]]:
    """Every leaf, `below` first: where it applies, such as "4 < b <= 64, t > 512", or "all sizes"; and its version."""
    for bounds, version in _leaves(tree, {}):
        ranges = [_range(" * ".join(dims), *limits) for dims, limits in bounds.items()]
        yield ", ".join(ranges) or "all sizes", version


_Bounds: TypeAlias = dict[tuple[str, ...], tuple[int | None, int | None]]


def _leaves(tree: Tree, bounds: _Bounds) -> Iterator[tuple[_Bounds, int]]:
    """Per leaf, what the products of dims on the way to it are above, and at most; and its version."""
    if not isinstance(tree, Split):
        yield bounds, tree
        return
    above, at_most = bounds.get(tree.dims, (None, None))
    limit = tree.threshold
    lower = limit if at_most is None else min(limit, at_most)
    higher = limit if above is None else max(limit, above)
    yield from _leaves(tree.below, {**bounds, tree.dims: (above, lower)})
    yield from _leaves(tree.above, {**bounds, tree.dims: (higher, at_most)})


def _range(what: str, above: int | None, at_most: int | None) -> str:
    if at_most is None:
        return f"{what} > {above}"
    return f"{what} <= {at_most}" if above is None else f"{above} < {what} <= {at_most}"


def relabel(tree: Tree, versions: Mapping[int, int]) -> Tree:
    """The tree with its versions renumbered; a split whose two sides become one leaf is that leaf."""
    if not isinstance(tree, Split):
        return versions[tree]
    below, above = relabel(tree.below, versions), relabel(tree.above, versions)
    return below if below == above and not isinstance(below, Split) else Split(tree.dims, tree.threshold, below, above)


def rename(tree: Tree, symbols: Mapping[str, str]) -> Tree:
    """The tree with its dims renamed."""
    if not isinstance(tree, Split):
        return tree
    dims = tuple(symbols[d] for d in tree.dims)
    return Split(dims, tree.threshold, rename(tree.below, symbols), rename(tree.above, symbols))


def check_tree(tree: Tree, symbols: Collection[str], versions: int) -> None:
    """Raises FormatError unless it is a tree over these dim symbols, whose leaves are the places of that many versions, all of
    them, at most `MAX_DEPTH` comparisons from the root.
    """
    found: set[int] = set()

    def visit(tree: Tree, depth: int) -> None:
        if not isinstance(tree, Split):
            found.add(tree)
            return
        if depth == MAX_DEPTH:
            raise FormatError(f"tree: more than {MAX_DEPTH} comparisons to a leaf")
        if len(tree.dims) not in (1, 2) or not set(tree.dims) <= set(symbols):
            raise FormatError(f"tree: dims must be one or two of {', '.join(symbols) or 'none'}, got {tree.dims!r}"[:200])
        visit(tree.below, depth + 1)
        visit(tree.above, depth + 1)

    visit(tree, 0)
    if wrong := found ^ set(range(versions)):
        where = "at no leaf" if min(wrong) in range(versions) else f"not one of {versions}"
        raise FormatError(f"tree: version {min(wrong)} is {where}")
