"""Evidence for matmuls of concats, concatenating accumulators and loops over two axes."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from benchmarks.search.mutants import judged
from benchmarks.search.mutate import mutants
from mirage.ir.axes import AxisNode, to_axes
from mirage.ir.operator import reduced_axes, reduced_parts
from mirage.ir.program import ProgramBuilder
from mirage.ir.types import tensor
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph, Ref
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.schedule import KernelSchedule, Schedule
from mirage.mugraph.thread import construct_threads, thread_groups
from mirage.mugraph.validate import validate
from mirage.search.algebras import Algebras
from mirage.verify.bounds import read_terms
from mirage.verify.equivalence import Verifier
from mirage.verify.proof import prove, prove_programs
from mirage.verify.safety import degree_violation
from tests.mugraph.graphs import Case, L, P, S, W, accumulate, block, kernel, mugraph, node, one, reads
from tests.mugraph.loops import CASES, MN, lora_program, roles
from tests.sampled import thinned

COUNT = 40


@pytest.mark.parametrize("name", CASES)
def test_proved_equal_and_safe(name: str) -> None:
    case = CASES[name]
    p = to_axes(case.program)
    assert prove(p, case.graph) == "proved"
    found = Verifier(case.program).check(case.graph)
    assert found.equal and found.safe_maximum and not found.difference
    assert degree_violation(p, case.graph, analyze(case.graph)) == ""


@pytest.mark.parametrize("name", CASES)
def test_proved_with_thread_graphs(name: str) -> None:
    case = CASES[name]
    nodes = [
        replace(n, graph=construct_threads(n.graph, thread_groups(n.graph))) if n.graph is not None else n
        for n in case.graph.kernel.nodes
    ]
    graph = replace(case.graph, kernel=replace(case.graph.kernel, nodes=tuple(nodes)))
    validate(graph)
    assert prove(to_axes(case.program), graph) == "proved"


@pytest.mark.parametrize("name", thinned(CASES))
def test_mutants_are_rejected_or_equal(name: str) -> None:
    case = CASES[name]
    verifier = Verifier(case.program)
    fates: Counter[str] = Counter()
    for kind, mutant in itertools.islice(mutants(case.graph, Random(5)), COUNT):
        fate, reason = judged(verifier, mutant)
        fates[fate] += 1
        assert fate in ("malformed", "different", "equal"), f"{kind}: {fate}, {reason}"
        if fate != "equal":
            assert prove(to_axes(case.program), mutant) == "not proved", kind
    assert fates["different"] + fates["malformed"] > COUNT // 2


# Matmuls of concats.


def two_contractions() -> Case:
    """x @ w + relu(x) @ u: operands that could be exchanged without breaking a rule."""
    b = ProgramBuilder("two")
    x, w, u = b.input("x", tensor("m", "k")), b.input("w", tensor("k", "n")), b.input("u", tensor("k", "n"))
    program = b.finish([b.op("add", b.op("matmul", x, w), b.op("matmul", b.op("relu", x), u))])
    p = to_axes(program)
    nodes = [
        *reads(*(v.dims for v in p.inputs)),
        node("relu", (0,), ("m", "k")),
        node("concat_matmul", (0, 3, 1, 2), MN, reduce=("k",)),
        accumulate(4, "k", MN),
    ]
    graph = mugraph(p, [kernel(block(nodes, (5,), m=P, n=P, k=L), (Ref(0), Ref(1), Ref(2)), one(*MN))], Ref(3))
    return Case(program, graph, Schedule(()), {})


def with_operands(graph: MuGraph, *operands: int) -> MuGraph:
    """The graph of `two_contractions` with other operands of its matmul of concats."""
    n = graph.kernel.nodes[3]
    assert n.graph is not None
    nodes = list(n.graph.nodes)
    nodes[4] = replace(nodes[4], operands=tuple(map(Ref, operands)))
    inner = replace(n, graph=replace(n.graph, nodes=tuple(nodes)))
    return replace(graph, kernel=replace(graph.kernel, nodes=(*graph.kernel.nodes[:3], inner)))


def test_which_operands_are_multiplied() -> None:
    case = two_contractions()
    p, verifier = to_axes(case.program), Verifier(case.program)
    same = {(0, 3, 1, 2): True, (3, 0, 2, 1): True, (1, 2, 0, 3): True}
    other = {(0, 3, 2, 1): False, (3, 0, 1, 2): False, (0, 0, 1, 2): False, (0, 3, 1, 1): False}
    for operands, equal in {**same, **other}.items():
        graph = with_operands(case.graph, *operands)
        validate(graph)
        assert prove(p, graph) == ("proved" if equal else "not proved"), operands
        assert verifier.check(graph).equal is equal, operands


def test_swapped_pairs_are_a_mutant() -> None:
    case = two_contractions()
    swapped = with_operands(case.graph, 0, 3, 2, 1)
    assert any(m == swapped for kind, m in itertools.islice(mutants(case.graph, Random(0)), 400))


def test_a_program_may_use_it() -> None:
    b = ProgramBuilder("lora")
    x, w = b.input("x", tensor("m", "k")), b.input("w", tensor("k", "n"))
    a, c = b.input("a", tensor("k", "r")), b.input("c", tensor("r", "n"))
    program = b.finish([b.op("concat_matmul", x, b.op("matmul", x, a), w, c)])
    assert {n.op for n in to_axes(program).nodes} == {"input", "matmul", "add"}
    assert prove_programs(program, lora_program()) == "proved"
    assert prove(to_axes(program), CASES["lora"].graph) == "proved"


def test_each_product_sums_its_own_axes() -> None:
    operands = [{"m", "k"}, {"m", "r"}, {"k", "n"}, {"r", "n"}]
    assert reduced_axes("concat_matmul", operands, ("r", "k")) == (("k",), ("r",))
    assert reduced_axes("matmul", operands[::2], ("k",)) == (("k",),)
    assert reduced_axes("add", operands[:2], ()) == ((),)
    parts = {"k": ("k.loop", "k.tile")}

    def of(axes: object) -> frozenset[str]:
        assert isinstance(axes, tuple)
        return frozenset(p for a in axes for p in parts.get(a, (a,)))

    both = (frozenset({"k.loop", "k.tile"}), frozenset({"r"}))
    assert reduced_parts("concat_matmul", operands, ("k", "r"), of) == both
    assert reduced_parts("sum", operands[:1], ("k",), of) == both[0]


def test_both_readings_are_those_of_the_sum_of_two_matmuls() -> None:
    p = to_axes(lora_program())
    al = Algebras(p, {"k": ("k.loop", "k.tile")})
    order = {n.attr["name"]: t for n, t in zip(p.nodes, al.targets, strict=True) if n.op == "input"}
    operands = [order["x"], next(t for n, t in zip(p.nodes, al.targets, strict=True) if n.axes == ("m", "r"))]
    operands += [order["w"], order["c"]]
    n = AxisNode("concat_matmul", (), (), MN, ("k", "r"))
    over = reduced_parts(n.op, [("m", "k"), ("m", "r"), ("k", "n"), ("r", "n")], n.reduce, al.all_parts)
    target = al.targets[p.outputs[0].value]
    assert al.exact_of(n, [f for f, _ in operands], over) is target[0]
    assert al.abstract_of(n, [a for _, a in operands], over) is target[1]
    # the axes of one product are not summed in the other
    wrong = (frozenset({"k.loop", "k.tile", "r"}), frozenset({"k.loop", "k.tile", "r"}))
    assert al.exact_of(n, [f for f, _ in operands], wrong) is not target[0]
    assert al.abstract_of(n, [a for _, a in operands], wrong) is not target[1]


# Loops.


def test_wrong_roles_are_never_proved() -> None:
    for name, changes in {
        "attention_2d": [{"t": S}, {"u": P}, {"t": W, "u": P}, {"n": L}],
        "scores": [{"n": S}, {"k": S}, {"n": W}, {"k": P}],
        "softmax": [{"t": S}, {"t": W}, {"t": P}, {"m": L}],
        "shares": [{"t": L}, {"t": P}, {"m": S}],
        "lora": [{"k": W}, {"r": L}, {"k": S}],
    }.items():
        case = CASES[name]
        for change in changes:
            assert prove(to_axes(case.program), roles(case.graph, 0, **change)) == "not proved", (name, change)


def test_the_axis_that_names_a_sum_over_two_loops_does_not_matter() -> None:
    graph = CASES["attention_2d"].graph
    n = graph.kernel.nodes[2]
    assert n.graph is not None
    nodes = list(n.graph.nodes)
    assert nodes[4].attr["axis"] == "t"
    nodes[4] = replace(nodes[4], attrs=(("mode", "sum"), ("axis", "u")))
    inner = replace(n, graph=replace(n.graph, nodes=tuple(nodes)))
    changed = replace(graph, kernel=replace(graph.kernel, nodes=(*graph.kernel.nodes[:2], inner)))
    assert prove(to_axes(CASES["attention_2d"].program), changed) == "proved"


def test_sums_after_the_loop_count_all_iterations() -> None:
    """Terms of an exp after a loop over tiles of one element: the denominator has one per key, as in the program."""
    case = CASES["summed_after"]
    sizes = {"m": 2, "t": 5}
    program = read_terms(reference_graph(to_axes(case.program)), Schedule(()), sizes)
    tiled = read_terms(case.graph, Schedule((KernelSchedule((("m", 1), ("t", 1))),)), sizes)
    assert program.outputs[0][1].count == 5
    assert tiled.outputs == program.outputs


def test_terms_of_two_loops_and_of_two_products() -> None:
    sizes = {"m": 2, "t": 3, "u": 4, "n": 2}
    case = CASES["attention_2d"]
    program = read_terms(reference_graph(to_axes(case.program)), Schedule(()), sizes)
    for name in ("attention_2d", "attention_2d_turned"):
        schedule = Schedule((KernelSchedule((("m", 1), ("t", 2), ("u", 3), ("n", 2))),))
        found = read_terms(CASES[name].graph, schedule, sizes)
        # uneven tiles are counted as if they were full: 4 times 6 exponentials, not 3 times 4
        assert [t.count for t in found.outputs[0]] == [24, 24] and [t.count for t in program.outputs[0]] == [12, 12]
    lora = CASES["lora"]
    at = {"m": 2, "n": 2, "k": 3, "r": 2}
    schedule = Schedule((KernelSchedule((("m", 2), ("n", 2), ("k", 1))),))
    wanted = read_terms(reference_graph(to_axes(lora.program)), Schedule(()), at)
    assert read_terms(lora.graph, schedule, at).outputs == wanted.outputs
