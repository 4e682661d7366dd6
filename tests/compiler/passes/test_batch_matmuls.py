"""Equal independent products become one batched product, where that pays."""

from __future__ import annotations

import pytest

from mirage.compiler.constraints import from_bounds
from mirage.compiler.context import Context
from mirage.compiler.passes import batch_matmuls, collect_constraints
from mirage.ir.graph.parse import parse_module
from tests.compiler.passes.running import after, assert_equal, evaluate, main_text, ops, random_arrays

PASSES = (collect_constraints.run, batch_matmuls.run)


def context(constants: int = 4, **bounds: int) -> Context:
    return Context(constants=tuple(f"w{i}" for i in range(constants)), bounds=from_bounds(bounds))


def experts(count: int, rows: str = "m", *, chained: bool = False, read: str = "relu") -> str:
    """Products of inputs and weights of their own; `chained`: each needs the one before; rows may have names of their own."""
    names = [rows.format(i=i) for i in range(count)]
    parameters = ", ".join(f"x{i}: float32[{names[i]}, 16], w{i}: float32[16, 16]" for i in range(count))
    checks = [f"c{i} = match_cast[float32[{names[0]}, 16]](x{i})" for i in range(count) if names[i] != names[0]]
    lines = list(checks)
    for i in range(count):
        lines.append(f"y{i} = matmul({f'z{i - 1}' if chained and i else f'x{i}'}, w{i})")
        lines.append(f"z{i} = {read}(y{i})")
    lines.append(f"r = ({', '.join(f'z{i}' for i in range(count))})")
    return main_text("\n".join(lines), parameters)


def arguments(count: int, rows: int) -> list[object]:
    return [a for i in range(count) for a in random_arrays(i, (rows, 16), (16, 16))]


def test_equal_products() -> None:
    text = experts(5)
    m = after(text, *PASSES, context=context(5, m=8))
    assert ops(m).count("matmul") == 1 and ops(m).count("concat") == 2
    args = arguments(5, 3)
    assert_equal(evaluate(m, *args), evaluate(parse_module(text), *args), 1e-6)


def test_shapes_that_are_proved_equal() -> None:
    text = experts(4, "m{i}")
    m = after(text, *PASSES, context=context(m0=8))
    assert ops(m).count("matmul") == 1
    args = arguments(4, 3)
    assert_equal(evaluate(m, *args), evaluate(parse_module(text), *args), 1e-6)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (experts(3), context(m=8)),
        # nothing says that these are equal
        (
            "".join(line for line in experts(4, "m{i}").splitlines(keepends=True) if "match_cast" not in line),
            context(m0=8),
        ),
        # large, or perhaps
        (experts(4), context(m=4096)),
        (experts(4), context()),
        # stacking these weights would be repeated in every call
        (experts(4), context(0, m=8)),
        # one waits for the other
        (experts(4, chained=True), context(m=8)),
        # parts of the batch would be copied
        (experts(4, read="softmax"), context(m=8)),
    ],
)
def test_what_stays(text: str, known: Context) -> None:
    m = after(text, *PASSES, context=known)
    assert ops(m).count("matmul") == ops(parse_module(text)).count("matmul")


def test_groups_that_wait_for_each_other() -> None:
    # p3 waits for s0 and s3 for p0: only one of the two groups can be a batch
    lines = []
    for i in range(3):
        lines += [
            f"p{i} = matmul(x{i}, w{i})",
            f"q{i} = relu(p{i})",
            f"s{i} = matmul(x{i}, w{4 + i})",
            f"t{i} = relu(s{i})",
        ]
    lines += [
        "s3 = matmul(q0, w7)",
        "t3 = relu(s3)",
        "tt = concat(t0, t0, axis=1)",
        "p3 = matmul(tt, w3)",
        "q3 = relu(p3)",
    ]
    parameters = [f"x{i}: float32[m, 16]" for i in range(3)]
    parameters += [f"w{i}: float32[16, {16 if i < 4 else 8}]" for i in range(8)]
    lines.append("r = (q0, q1, q2, q3, t0, t1, t2, t3)")
    text = main_text("\n".join(lines), ", ".join(parameters))
    m = after(text, *PASSES, context=context(8, m=8))
    assert ops(m).count("matmul") == 5
    args = random_arrays(9, *[(3, 16)] * 3, *[(16, 16)] * 4, *[(16, 8)] * 4)
    assert_equal(evaluate(m, *args), evaluate(parse_module(text), *args), 1e-6)
