"""An e-graph: classes of equal terms under congruence, each equality with its reason.

A term is added as it is, with its own number, and joined to the class of the terms that are equal to it. The reasons are kept as
a forest over terms, so that the steps from one term to another can be told (Nieuwenhuis and Oliveras, "Proof-producing
congruence closure", 2005; Willsey et al., "egg: fast and extensible equality saturation", 2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from mirage.verify.rules.pattern import Binding, Pattern
from mirage.verify.rules.rule import Instance
from mirage.verify.rules.terms import COMMUTATIVE, Node, Terms


class Step(NamedTuple):
    """A rewrite of one term to another, by an instance of a rule, from right to left if it is `back`."""

    before: int
    after: int
    instance: Instance
    back: bool


def head_of(x: Node) -> str:
    """The operator of a term, or the function that it applies."""
    return x.data[0] if x.op == "function" else x.op


#: why two terms are equal: an instance of a rule, or the same operator on operands that were equal when the terms were joined,
#: the first with the first, or, if it is True, crosswise
Reason = Instance | bool


class EGraph:
    """Classes of terms. `find` gives the number that stands for a class; `nodes` are its terms, without repetitions."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._parent: dict[int, int] = {}
        self._memo: dict[Node, int] = {}
        self._uses: dict[int, list[int]] = {}
        self._members: dict[int, list[int]] = {}
        #: per term, the next one on the way to the root of its tree of reasons
        self._why: dict[int, tuple[int, Reason]] = {}
        self._todo: list[int] = []
        #: per class, a term of it with the fewest axes, and of these the smallest
        self.best: dict[int, int] = {}
        self._nodes: dict[int, dict[str, list[Node]]] = {}
        #: per class its best term when the graph was last rebuilt, and the classes near what has changed, by how near
        self._best_then: dict[int, int] = {}
        self._near: list[frozenset[int]] = []
        self._numbers: dict[int, Fraction] = {}

    def __len__(self) -> int:
        return len(self._memo)

    def find(self, x: int) -> int:
        root = x
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[x] != root:
            self._parent[x], x = root, self._parent[x]
        return root

    def equal(self, x: int, y: int) -> bool:
        return self.find(x) == self.find(y)

    def classes(self) -> list[int]:
        """The classes that there are."""
        return list(self._members)

    def add(self, x: int) -> int:
        """The class of a term, which is added if it is new."""
        if x in self._parent:
            return self.find(x)
        node = self.terms.nodes[x]
        for a in node.args:
            self.add(a)
        self._parent[x] = x
        self._members[x] = [x]
        self._uses[x] = []
        self.best[x] = x
        if node.op == "constant":
            self._numbers[x] = node.data
        canonical = self._canonical(node)
        for a in set(canonical.args):
            self._uses[a].append(x)
        same = self._memo.setdefault(canonical, x)
        if same != x:
            self.join(x, same, self._crosswise(x, same))
        return self.find(x)

    def _canonical(self, node: Node) -> Node:
        args = tuple([self.find(a) for a in node.args])
        if node.op in COMMUTATIVE and args[0] > args[1]:
            args = args[::-1]
        return Node(node.op, node.data, args)

    def _crosswise(self, x: int, y: int) -> bool:
        return not all(map(self.equal, self.terms.nodes[x].args, self.terms.nodes[y].args))

    def join(self, x: int, y: int, why: Reason) -> bool:
        """Make two terms equal, for this reason; whether they were not."""
        a, b = self.find(x), self.find(y)
        if a == b:
            return False
        if len(self._members[a]) > len(self._members[b]):
            a, b, x, y = b, a, y, x
        self._lead_to(x, y, why)
        self._parent[a] = b
        self._members[b] += self._members.pop(a)
        self._todo.extend(self._uses[a])
        self._uses[b] += self._uses.pop(a)
        self.best[b] = min(self.best.pop(a), self.best[b], key=self._order)
        if a in self._numbers:
            self._numbers.setdefault(b, self._numbers[a])
        return True

    def _order(self, x: int) -> tuple[int, int, int]:
        return len(self.terms.axes[x]), self.terms.count[x], x

    def _lead_to(self, x: int, y: int, why: Reason) -> None:
        """Make `x` the root of its tree, and then a child of `y`."""
        at, towards, reason = x, y, why
        while True:
            before = self._why.get(at)
            self._why[at] = towards, reason
            if before is None:
                return
            at, (towards, reason) = before[0], (at, before[1])

    def rebuild(self) -> None:
        """Join what congruence joins."""
        while self._todo:
            todo, self._todo = self._todo, []
            for x in todo:
                canonical = self._canonical(self.terms.nodes[x])
                same = self._memo.setdefault(canonical, x)
                if same != x:
                    self.join(x, same, self._crosswise(x, same))
        before = self._nodes
        self._memo = {}
        self._nodes = {}
        for root, members in self._members.items():
            found: dict[Node, int] = {}
            for x in members:
                found.setdefault(self._canonical(self.terms.nodes[x]), x)
            by_head: dict[str, list[Node]] = {}
            for node in found:
                by_head.setdefault(head_of(node), []).append(node)
            self._nodes[root] = by_head
            self._memo.update(found)
        changed = [r for r, nodes in self._nodes.items() if before.get(r) != nodes or self._best_then.get(r) != self.best[r]]
        self._best_then = dict(self.best)
        self._near = [frozenset(changed)]

    def near_changes(self, height: int) -> frozenset[int]:
        """The classes that changed between the last two rebuilds, and those with one at most so many operators below them: a
        pattern of this height has new matches nowhere else.
        """
        while len(self._near) <= height:
            last = self._near[-1]
            self._near.append(last.union(self.find(x) for root in last for x in self._uses[root]))
        return self._near[height]

    def nodes(self, root: int) -> Mapping[str, Sequence[Node]]:
        """The terms of a class over classes, as it was when the graph was last rebuilt, by their heads."""
        return self._nodes.get(root, {})

    def __str__(self) -> str:
        """The classes, each with its terms, as it was when the graph was last rebuilt."""
        names = self.names()
        return "\n".join(f"{name} = {' | '.join(self.texts(root, names))}" for root, name in names.items())

    def names(self) -> dict[int, str]:
        """A name for each class, in the order in which their terms were added."""
        return {root: f"c{i}" for i, root in enumerate(sorted(self._nodes, key=lambda r: min(self._members[r])))}

    def texts(self, root: int, names: Mapping[int, str]) -> list[str]:
        """The terms of a class over classes of these names, as it was when the graph was last rebuilt."""
        return sorted(self._text(node, names) for nodes in self.nodes(root).values() for node in nodes)

    def below(self, root: int) -> list[int]:
        """The classes to which the terms of a class are applied."""
        return list(dict.fromkeys(self.find(a) for nodes in self.nodes(root).values() for node in nodes for a in node.args))

    def _text(self, node: Node, names: Mapping[int, str]) -> str:
        if not node.args:
            return self.terms.text(self.terms.intern(*node))
        over = f"[{','.join(node.data)}]" if node.op == "sum" else ""
        return f"{head_of(node)}{over}({', '.join(names[self.find(a)] for a in node.args)})"

    # -- matching

    def matches(self, p: Pattern, root: int) -> list[Binding]:
        """The ways in which a class is a pattern; variables stand for classes, numbers for constants, and axis variables for
        axes.
        """
        return self._match(p, root, {})

    def _match(self, p: Pattern, root: int, binding: Binding) -> list[Binding]:
        op = p.op
        if op == "var":
            known = binding.get(p.data)
            if known is not None:
                return [binding] if known == root else []
            return [{**binding, p.data: root}]
        if op == "number":
            number = self._numbers.get(root)
            bound = None if number is None else _numbered(p, number, binding)
            return [] if bound is None else [bound]
        if op == "constant":
            return [binding] if self._numbers.get(root) == p.data else []
        nodes = self._nodes.get(root)
        if nodes is None or (mine := nodes.get(p.head)) is None:
            return []
        found: list[Binding] = []
        for node in mine:
            if op == "concat":
                if (more := _joined(p, node, binding)) is not None:
                    found += self._operands(p, node, more)
            elif op == "sum":
                over = frozenset(node.data)
                for summed in self._operands(p, node, binding):
                    found += self._summed(p, over, summed)
            elif p.data == node.data:
                found += self._operands(p, node, binding)
            elif p.parameters and (more := _parametrized(p, node, binding)) is not None:
                found += self._operands(p, node, more)
        return found

    def _operands(self, p: Pattern, node: Node, binding: Binding) -> list[Binding]:
        if len(p.args) == 1:
            return self._match(p.args[0], node.args[0], binding)
        if len(node.args) != 2:
            return []
        (first, second), (x, y) = p.args, node.args
        found = self._both(first, x, second, y, binding)
        if x != y and node.op in COMMUTATIVE:
            found += self._both(first, y, second, x, binding)
        return found

    def _both(self, first: Pattern, x: int, second: Pattern, y: int, binding: Binding) -> list[Binding]:
        if first.op == "var":
            # a variable is any class: what may not be there is looked for first
            first, x, second, y = second, y, first, x
        return [both for one in self._match(first, x, binding) for both in self._match(second, y, one)]

    def _summed(self, p: Pattern, over: frozenset[str], binding: Binding) -> list[Binding]:
        """With the axis variables of a sum bound to its axes. Of two, the first stands for those axes on which some variable
        depends that may only depend on it.
        """
        if len(p.data) == 1:
            (name,) = p.data
            return [{**binding, name: over}] if binding.get(name, over) == over else []
        outer, inner = p.data
        fixed: set[str] = set()
        for name, variable in p.by_name.items():
            if variable.op == "var" and inner not in variable.over:
                fixed |= self.terms.axes[self.best[binding[name]]]
        return [{**binding, outer: over & fixed, inner: over - fixed}] if over - fixed else []

    def terms_of(self, binding: Binding) -> Binding:
        """The same with a term for each class."""
        return {v: x if isinstance(x, frozenset | tuple) else self._term_of(x) for v, x in binding.items()}

    def _term_of(self, x: int | Fraction) -> int:
        if isinstance(x, Fraction):
            return self.terms.constant(x)
        root = self.find(x)
        value = self._numbers.get(root)
        return self.best[root] if value is None else self.terms.constant(value)

    # -- reasons

    def explain(self, x: int, y: int) -> list[Step]:
        """The steps from a term to an equal one."""
        steps: list[Step] = []
        for before, after, why in self._way(x, y):
            if isinstance(why, Instance):
                steps.append(Step(before, after, why, why.left != before))
            else:
                steps += self._congruent(before, after, why)
        return steps

    def _way(self, x: int, y: int) -> list[tuple[int, int, Reason]]:
        """The terms from one to the other through the nearest that leads to both, each with the next one, and why."""
        up = [x]
        while up[-1] in self._why:
            up.append(self._why[up[-1]][0])
        place = {t: i for i, t in enumerate(up)}
        down = [y]
        while down[-1] not in place:
            down.append(self._why[down[-1]][0])
        way = [(a, *self._why[a]) for a in up[: place[down[-1]]]]
        return way + [(self._why[a][0], a, self._why[a][1]) for a in reversed(down[:-1])]

    def _congruent(self, x: int, y: int, crosswise: bool) -> list[Step]:
        """The steps between terms of the same operator, one operand after the other."""
        node, wanted = self.terms.nodes[x], self.terms.nodes[y].args
        args = list(node.args)
        steps: list[Step] = []
        current = x
        for i, (a, b) in enumerate(zip(node.args, wanted[::-1] if crosswise else wanted, strict=True)):
            for step in self.explain(a, b):
                args[i] = step.after
                after = self.terms.intern(node.op, node.data, tuple(args))
                steps.append(Step(current, after, step.instance, step.back))
                current = after
        return steps


def _numbered(p: Pattern, value: Fraction, binding: Binding) -> Binding | None:
    """With a number standing for this constant; None where it stands for another one."""
    if p.data in binding:
        return binding if binding[p.data] == value else None
    return {**binding, p.data: value}


def _parametrized(p: Pattern, node: Node, binding: Binding) -> Binding | None:
    """With the numbers bound that are parameters of a function; a pattern of several numbers is found nowhere."""
    for wanted, value in zip(p.data[1], node.data[1], strict=True):
        if isinstance(wanted, Pattern) and wanted.op == "number":
            bound = _numbered(wanted, value, binding)
            if bound is None:
                return None
            binding = bound
        elif wanted != value:
            return None
    return binding


def _joined(p: Pattern, node: Node, binding: Binding) -> Binding | None:
    """With the axes of a concat bound: the joined one by the pattern's name, and those of its operands."""
    whole, pieces = node.data
    if len(pieces) != len(p.args):
        return None
    wanted = {p.data: frozenset((whole,))}
    wanted |= {f"{p.data}_{i}": frozenset((piece,)) for i, piece in enumerate(pieces)}
    if any(binding.get(name, axes) != axes for name, axes in wanted.items()):
        return None
    return {**binding, **wanted, f"{p.data}_joined": node.data}
