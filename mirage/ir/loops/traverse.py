"""Walking through and rebuilding scalar expressions; what several of them share is visited once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from mirage.ir.loops.scalars import (
    Apply,
    Binary,
    Cast,
    Checked,
    Loop,
    Read,
    Scalar,
    Select,
    Unary,
    cast,
    negative,
)


def rebuild(x: Scalar, operands: Sequence[Scalar]) -> Scalar:
    """The expression with other operands."""
    match x:
        case Read():
            return Read(x.tensor, tuple(operands), x.type)
        case Checked():
            return Checked(operands[0], x.extent, x.where)
        case Unary(op="neg"):
            return negative(operands[0])
        case Unary():
            return Unary(x.op, operands[0])
        case Binary():
            return Binary(x.op, *operands)
        case Select():
            return Select(*operands)
        case Apply():
            return Apply(x.function, operands[0], x.parameters)
        case Cast():
            return cast(operands[0], x.to)
    return x


def transform(x: Scalar, change: Callable[[Scalar], Scalar | None], memo: dict[Scalar, Scalar] | None = None) -> Scalar:
    """The expression with `change` made from the leaves upwards: it gives what to put in place of a node, or None."""
    memo = {} if memo is None else memo
    stack = [(x, False)]
    while stack:
        node, ready = stack.pop()
        if node in memo:
            continue
        if not ready:
            stack.append((node, True))
            stack += [(o, False) for o in node.operands]
            continue
        operands = [memo[o] for o in node.operands]
        same = all(a is b for a, b in zip(operands, node.operands, strict=True))
        made = node if same else rebuild(node, operands)
        changed = change(made)
        memo[node] = made if changed is None else changed
    return memo[x]


def substitute(x: Scalar, loops: Mapping[str, Scalar]) -> Scalar:
    """The expression with loops replaced, all at once."""
    return transform(x, lambda n: loops.get(n.name) if isinstance(n, Loop) else None)


def walk(x: Scalar) -> Iterator[Scalar]:
    """Every distinct subexpression once, operands before what uses them."""
    seen: set[Scalar] = set()
    stack = [(x, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(o, False) for o in reversed(node.operands)]


def loops_of(x: Scalar) -> set[str]:
    """Names of the loops that an expression depends on."""
    return {n.name for n in walk(x) if isinstance(n, Loop)}


def reads_of(x: Scalar) -> list[Read]:
    """The distinct reads of an expression, those of indices before what they index."""
    return [n for n in walk(x) if isinstance(n, Read)]
