"""The corpus of mutants of graphs that the search found: no wrong one is accepted."""

from __future__ import annotations

import itertools
import json
from random import Random

import pytest

from benchmarks.programs import PROGRAMS
from benchmarks.search import mutants as corpus_of
from benchmarks.search.mutants import Mutant, by_kind, corpus, distinct, found_graphs, sources
from benchmarks.search.mutate import CHANGES
from mirage.ir.axes import AxisProgram
from mirage.verify.equivalence import Verifier
from mirage.verify.rules.chain import Link
from mirage.verify.rules.rewritten import Rewritten

#: the measured programs, and those with a better form
PLAIN = {s.name: s for s in sources()}
ALL = {s.name: s for s in sources(rules=True)}
#: a sample: programs whose search takes well under a second
SAMPLE = ["gqa_decode", "rmsnorm_linear", "gated_mlp", "lora", "softmax"]


def check(found: list[Mutant]) -> None:
    """No mutant is accepted that float64 tells from its program, and hardly one that is not proved."""
    for m in found:
        assert m.fate != "wrong", m
        # a change that float64 may not see has to be excluded by proof
        assert m.fate != "not proved" or m.kind not in ("wrong constant", "wrong size"), m
    total = by_kind(found)[-1]
    fates = (total.malformed, total.different, total.equal, total.by_rules, total.not_proved)
    assert sum(fates) == total.mutants == len(found)
    assert total.not_proved <= len(found) // 1000


def test_a_sample_of_the_corpus() -> None:
    found = list(corpus([PLAIN[name] for name in SAMPLE], 400))
    assert len(found) == 400 and {m.program for m in found} == set(SAMPLE)
    check(found)
    assert sum(m.fate == "different" for m in found) >= 100
    assert any(m.fate == "equal" for m in found)


def test_rules_prove_no_mutant_that_is_wrong() -> None:
    names = ["quotient of exps", "log of exps", "log ratio"]
    found = list(corpus([ALL[name] for name in names], 30, rules=True))
    assert len(found) == 30 and not any(m.fate == "wrong" for m in found)
    assert any(m.fate == "by rules" for m in found)


def test_what_rules_prove_is_judged_by_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    def proved(a: AxisProgram, b: AxisProgram) -> Rewritten:
        return Rewritten(b, (Link("a rule that is wrong", "x", "y"),))

    monkeypatch.setattr(corpus_of, "prove_by_rules", proved)
    found = list(corpus([PLAIN["softmax"]], 60, rules=True))
    wrong = [m for m in found if m.fate == "wrong"]
    assert wrong and all("by a rule that is wrong" in m.reason for m in wrong)


@pytest.mark.slow
def test_the_corpus_by_rules() -> None:
    found = list(corpus(sources(rules=True), corpus_of.COUNT, rules=True))
    assert len(found) == corpus_of.COUNT and {m.program for m in found} == set(ALL)
    assert not any(m.fate == "wrong" for m in found)


@pytest.mark.slow
def test_the_corpus() -> None:
    found = list(corpus(sources(), corpus_of.COUNT))
    assert len(found) == corpus_of.COUNT >= 10_000 and {m.program for m in found} == set(PROGRAMS)
    check(found)
    rows = by_kind(found)
    assert {row.kind for row in rows if row.mutants} == {*CHANGES, "all"}
    assert rows[-1].different >= 3_000


def test_mutants_of_a_graph_are_distinct_and_end() -> None:
    source = PLAIN["softmax"]
    graph = found_graphs(source, Verifier(source.program), 1)[0]
    first, second = ([m.kernel for _, m in distinct(graph, Random(0))] for _ in range(2))
    assert first == second and len(first) == len(set(first)) > 20
    assert graph.kernel not in first


def test_graphs_are_of_several_plans() -> None:
    source = PLAIN["gqa_decode"]
    graphs = found_graphs(source, Verifier(source.program), 8)
    assert len({g.origin for g in graphs}) == 8 and {len(g.kernels) for g in graphs} >= {1, 2}


def test_the_table_counts_every_mutant_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(corpus_of, "PROGRAMS", {"softmax": PROGRAMS["softmax"]})
    corpus_of.main(40, as_json=True)
    printed = capsys.readouterr()
    *rows, total = json.loads(printed.out)
    assert [r["kind"] for r in rows] == list(CHANGES) and total["kind"] == "all"
    for field in ("mutants", "malformed", "different", "equal", "by_rules", "not_proved", "wrong"):
        assert total[field] == sum(r[field] for r in rows)
    assert total["mutants"] == 40
    assert "40 mutants of 1 programs" in printed.err


def test_a_wrong_acceptance_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Mutant("softmax", "wrong role", "wrong", "output 0 differs")
    monkeypatch.setattr(corpus_of, "corpus", lambda *_: itertools.repeat(wrong, 2))
    with pytest.raises(SystemExit) as e:
        corpus_of.main(2)
    assert e.value.code == 1
