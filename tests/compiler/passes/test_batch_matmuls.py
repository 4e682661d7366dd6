"""Equal independent products become one batched product, where that pays."""

from __future__ import annotations

import pytest

from mirage.compiler.constraints import from_bounds
from mirage.compiler.context import Context
from mirage.compiler.passes import batch_matmuls, collect_constraints
from mirage.ir.graph.parse import parse_module
from tests.compiler.passes.running import after, assert_equal, evaluate, main_text, ops, random_arrays

PASSES = (collect_constraints.run, batch_matmuls.run)


def context(constants: int = 6, **bounds: int) -> Context:
    return Context(constants=tuple(f"w{i}" for i in range(constants)), bounds=from_bounds(bounds))


def experts(
    count: int,
    inner: str = "16",
    *,
    checks: bool = True,
    chained: bool = False,
    read: str = "relu",
    summed: bool = True,
) -> str:
    """Products of inputs and weights of their own, and their sum.

    `inner` is the summed dim; it may have names of its own, which `checks` say to be equal. `chained`: each product needs the
    one before.
    """
    names = [inner.format(i=i) for i in range(count)]
    parameters = ", ".join(f"x{i}: float32[m, {k}], w{i}: float32[{k}, 16]" for i, k in enumerate(names))
    lines = [
        f"c{i} = match_cast[float32[m, {names[0]}]](x{i})" for i, k in enumerate(names) if k != names[0] and checks
    ]
    for i in range(count):
        lines.append(f"y{i} = matmul({f'z{i - 1}' if chained and i else f'x{i}'}, w{i})")
        lines.append(f"z{i} = {read}(y{i})")
    if summed:
        lines += [f"s{i} = add({f's{i - 1}' if i > 1 else 'z0'}, z{i})" for i in range(1, count)]
        lines.append(f"r = exp(s{count - 1})")
    else:
        lines.append(f"r = ({', '.join(f'z{i}' for i in range(count))})")
    return main_text("\n".join(lines), parameters)


def arguments(count: int, rows: int) -> list[object]:
    return [a for i in range(count) for a in random_arrays(i, (rows, 16), (16, 16))]


def test_equal_products() -> None:
    text = experts(7, read="tanh")
    m = after(text, *PASSES, context=context(7, m=8))
    assert ops(m).count("matmul") == 1 and ops(m).count("concat") == 2
    args = arguments(7, 3)
    assert_equal(evaluate(m, *args), evaluate(parse_module(text), *args), 1e-6)


def test_shapes_that_are_proved_equal() -> None:
    text = experts(6, "k{i}")
    m = after(text, *PASSES, context=context(m=8, k0=16))
    assert ops(m).count("matmul") == 1
    args = arguments(6, 3)
    assert_equal(evaluate(m, *args), evaluate(parse_module(text), *args), 1e-6)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (experts(5), context(m=8)),
        # nothing says that these are equal
        (experts(6, "k{i}", checks=False), context(m=8, k0=16)),
        # large, or perhaps
        (experts(6), context(m=4096)),
        (experts(6), context()),
        # stacking these weights would be repeated in every call
        (experts(6), context(0, m=8)),
        # one waits for the other
        (experts(6, chained=True), context(m=8)),
        # a kernel for each part
        (experts(6, summed=False), context(m=8)),
        # parts of the batch would be copied
        (experts(6, read="softmax"), context(m=8)),
    ],
)
def test_what_stays(text: str, known: Context) -> None:
    m = after(text, *PASSES, context=known)
    assert ops(m).count("matmul") == ops(parse_module(text)).count("matmul")


def test_groups_that_wait_for_each_other() -> None:
    # p0 waits for s1 and s0 for p1: only one of the two groups can be a batch
    lines = []
    for i in range(1, 6):
        lines += [
            f"p{i} = matmul(x{i}, w{i})",
            f"q{i} = relu(p{i})",
            f"s{i} = matmul(x{i}, u{i})",
            f"t{i} = relu(s{i})",
        ]
    lines += [
        "s0 = matmul(q1, u0)",
        "t0 = relu(s0)",
        "tt = concat(t1, t1, axis=1)",
        "p0 = matmul(tt, w0)",
        "q0 = relu(p0)",
    ]
    for name in "qt":
        lines += [
            f"{name}s1 = add({name}0, {name}1)",
            *(f"{name}s{i} = add({name}s{i - 1}, {name}{i})" for i in range(2, 6)),
        ]
    lines.append("r = (qs5, ts5)")
    parameters = [f"x{i}: float32[m, 16]" for i in range(1, 6)]
    parameters += [f"{w}{i}: float32[16, {n}]" for w, n in (("w", 16), ("u", 8)) for i in range(6)]
    text = main_text("\n".join(lines), ", ".join(parameters))
    known = Context(constants=tuple(f"{w}{i}" for w in "wu" for i in range(6)), bounds=from_bounds({"m": 8}))
    m = after(text, *PASSES, context=known)
    assert ops(m).count("matmul") == 7
    args = random_arrays(9, *[(3, 16)] * 5, *[(16, 16)] * 6, *[(16, 8)] * 6)
    assert_equal(evaluate(m, *args), evaluate(parse_module(text), *args), 1e-6)
