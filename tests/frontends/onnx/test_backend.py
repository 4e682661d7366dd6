"""ONNX's own backend tests: a sample of them here, all of them among the slow tests."""

from __future__ import annotations

import zlib
from collections import Counter

import pytest

pytest.importorskip("onnx")

from mirage.frontends.onnx import importer  # noqa: F401
from mirage.frontends.onnx.table import LOWERINGS
from tests.frontends.onnx.cases import NOT_EXPECTED, cases, is_of_our_types, model_of, run

#: one case of so many is run in the normal suite
_ONE_OF = 25
#: the modules of lowerings; that of contractions, say
KINDS = {lowering.fn.__module__ for lowering in LOWERINGS.values()}


def checked(kind: str, names: list[str], record_property: object, **options: object) -> Counter[str]:
    """Run cases, of which those fail that are expected to; counts of what passed."""
    counts: Counter[str] = Counter()
    wrong = []
    for name in names:
        case = cases(kind)[name]
        outcome = run(case, **options)
        ours = is_of_our_types(model_of(case))
        counts["cases"] += 1
        counts["ours"] += ours
        if not outcome.error:
            counts["passed"] += 1
            counts["ours passed"] += ours
            counts["ours native"] += ours and not outcome.fallback
        elif name not in NOT_EXPECTED:
            wrong.append(f"{name}: {outcome.error}")
    line = (
        f"{kind}: {counts['passed']} of {counts['cases']} passed; of {counts['ours']} over known element types "
        f"{counts['ours passed']}, natively {counts['ours native']}"
    )
    assert callable(record_property)
    record_property("onnx", line)
    assert not wrong, "\n".join(wrong)
    return counts


def kinds_of(name: str) -> set[str]:
    """The modules of the lowerings of a node test's operators."""
    nodes = model_of(cases("node")[name]).graph.node
    return {LOWERINGS[n.op_type].fn.__module__ for n in nodes if n.op_type in LOWERINGS}


def sampled(names: list[str]) -> list[str]:
    """One case of so many, and of each module of lowerings that these have none of the first one."""
    found = [n for n in names if zlib.crc32(n.encode()) % _ONE_OF == 0]
    missing = KINDS - set().union(*map(kinds_of, found))
    # models are read only until nothing is missing: there are two thousand
    rest = iter(names)
    while missing:
        name = next(rest)
        if kinds := kinds_of(name) & missing:
            found.append(name)
            missing -= kinds
    return [n for n in found if n not in NOT_EXPECTED]


def test_a_sample_of_node_tests_passes(record_property: object) -> None:
    names = sampled(sorted(cases("node")))
    assert set().union(*map(kinds_of, names)) == KINDS
    counts = checked("node", names, record_property)
    assert counts["cases"] > 40
    assert counts["ours native"] > 0.8 * counts["ours"]


def test_some_cases_pass_as_they_are_compiled_for_users(record_property: object) -> None:
    names = ["test_add_bcast", "test_softmax_axis_1", "test_conv_with_strides_and_asymmetric_padding", "test_matmul_3d"]
    assert checked("node", names, record_property, without=("superoptimize",))["ours native"] == len(names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "passed", "native"),
    [("node", 1873, 1524), ("simple", 21, 7), ("pytorch-operator", 35, 23), ("pytorch-converted", 82, 71)],
)
def test_all_cases_pass(kind: str, passed: int, native: int, record_property: object) -> None:
    counts = checked(kind, sorted(cases(kind)), record_property)
    assert counts["passed"] >= passed
    assert counts["ours native"] >= native


def test_what_is_not_expected_to_pass_is_a_case() -> None:
    assert {*cases("node"), *cases("simple")} >= NOT_EXPECTED.keys()
