"""What ran before runs still, at all sizes at which nothing was measured to be faster."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mirage.errors import MirageError
from mirage.kernels.decision import Split, Tree
from mirage.kernels.duel import Duel
from mirage.kernels.profile import Timing
from mirage.search.candidates import Candidate
from mirage.search.decision import Decision, Point, Version
from mirage.search.succession import Duels, is_same, succeed
from tests.search.test_versions import candidates

SMALL, MIDDLE, LARGE = {"b": 4}, {"b": 64}, {"b": 1024}
FUSED, SEPARATE, CALLS = candidates()


def version(c: Candidate, us: float = 10.0) -> Version:
    timing = Timing(us, us, 3)
    return Version("mugraph", timing, Candidate(c.graph, c.certificate, c.maximum, c.cost, sizes=SMALL, timing=timing))


def decision(versions: Sequence[Version], tree: Tree, *points: tuple[dict[str, int], Sequence[float]]) -> Decision:
    return Decision(tuple(versions), tree, tuple(Point(sizes, tuple(times)) for sizes, times in points))


def one(c: Candidate, us: float = 10.0) -> Decision:
    return decision([version(c, us)], 0, (SMALL, [us]))


class Compared:
    """Comparisons that end as they are told to: by the sizes of b, how many us both take, or None where there is no time."""

    def __init__(self, **took: tuple[float, float] | None) -> None:
        self.took = {int(name[1:]): both for name, both in took.items()}
        self.asked: list[tuple[int, bool]] = []

    def __call__(self, sizes: object, old: Version, new: Version, given: bool) -> Duel | None:
        assert isinstance(sizes, dict)
        self.asked.append((sizes["b"], given))
        both = self.took[sizes["b"]]
        if both is None:
            return None
        holder, challenger = (Timing(us, us, 40) for us in both)
        return Duel(holder, challenger, both[1] < both[0])


def graph_at(d: Decision, sizes: dict[str, int]) -> object:
    found = d.at(sizes).candidate
    return found and found.graph


@pytest.mark.parametrize("took", [(10.0, 11.0), None], ids=["slower", "no time"])
def test_what_ran_before_stays_where_the_new_one_is_not_faster(took: tuple[float, float] | None) -> None:
    # the new one looks faster by the times of its own run
    before, after = one(FUSED, 10.0), one(SEPARATE, 1.0)
    compared = Compared(b4=took)
    found = succeed(before, after, [SMALL], compared)
    assert graph_at(found, SMALL) is FUSED.graph
    assert compared.asked == [(4, True)]
    if took is None:
        assert found is before
    else:
        assert found.versions[0].timing.runs == 40, "of many calls, in place of what may have been a single one"
        assert found.points[0].times == pytest.approx([10.0])


def test_library_calls_do_not_replace_a_kernel_without_a_comparison() -> None:
    after = decision([Version("library", Timing(1.0, 1.0, 1))], 0, (SMALL, [1.0]))
    found = succeed(one(FUSED), after, [SMALL], Compared(b4=None))
    assert graph_at(found, SMALL) is FUSED.graph


def test_what_is_faster_takes_its_place() -> None:
    found = succeed(one(FUSED), one(SEPARATE, 30.0), [SMALL], Compared(b4=(10.0, 5.0)))
    assert graph_at(found, SMALL) is SEPARATE.graph and len(found.versions) == 1
    assert found.versions[0].timing == Timing(5.0, 5.0, 40)


def test_equal_versions_are_not_compared() -> None:
    before, after = one(FUSED, 10.0), one(FUSED, 12.0)
    assert succeed(before, after, [SMALL], Compared()) is after


def test_every_size_has_what_is_fastest_there() -> None:
    before = decision(
        [version(FUSED), version(CALLS, 20.0)], Split(("b",), 100, 0, 1), (SMALL, [10.0, 20.0]), (LARGE, [90.0, 30.0])
    )
    after = decision([version(SEPARATE, 8.0)], 0, (SMALL, [8.0]), (MIDDLE, [9.0]), (LARGE, [60.0]))
    compared = Compared(b4=(10.0, 8.0), b64=(20.0, 12.0), b1024=(30.0, 60.0))
    found = succeed(before, after, [SMALL], compared)
    assert [graph_at(found, s) for s in (SMALL, MIDDLE, LARGE)] == [SEPARATE.graph, SEPARATE.graph, CALLS.graph]
    assert compared.asked == [(4, True), (1024, False), (64, False)]
    assert len(found.versions) == 2, "what runs nowhere is gone"
    assert [dict(p.sizes) for p in found.points] == [SMALL, LARGE, MIDDLE]


def test_where_there_is_no_time_what_ran_before_stays() -> None:
    before = decision([version(FUSED)], 0, (SMALL, [10.0]), (LARGE, [50.0]))
    after = decision([version(SEPARATE, 8.0)], 0, (SMALL, [8.0]), (LARGE, [40.0]))
    found = succeed(before, after, [SMALL], Compared(b4=(10.0, 8.0), b1024=None))
    assert [graph_at(found, s) for s in (SMALL, LARGE)] == [SEPARATE.graph, FUSED.graph]


def test_all_given_sizes_have_their_fastest() -> None:
    before = decision([version(FUSED)], 0, (SMALL, [10.0]), (LARGE, [50.0]))
    after = decision([version(SEPARATE, 8.0)], 0, (SMALL, [8.0]), (LARGE, [49.9]))
    found = succeed(before, after, [SMALL, LARGE], Compared(b4=(10.0, 10.1), b1024=(50.0, 49.0)))
    # by less than a leaf has to save elsewhere
    assert [graph_at(found, s) for s in (SMALL, LARGE)] == [FUSED.graph, SEPARATE.graph]


def test_versions_are_the_same_where_they_run_the_same_kernels() -> None:
    assert is_same(version(FUSED), version(FUSED, 3.0))
    assert not is_same(version(FUSED), version(SEPARATE))
    library, reference = (Version(kind, Timing(1.0, 1.0, 1)) for kind in ("library", "reference"))
    assert is_same(library, library) and not is_same(library, reference) and not is_same(library, version(FUSED))


def test_an_interrupt_ends_the_comparisons() -> None:
    def interrupt(sizes: object) -> object:
        raise KeyboardInterrupt

    compared = Duels(60.0, lambda _: None, interrupt)  # type: ignore[arg-type]
    assert compared(SMALL, version(FUSED), version(SEPARATE), True) is None
    assert compared.interrupted
    assert compared(SMALL, version(FUSED), version(SEPARATE), True) is None


def test_what_cannot_be_made_here_gives_way() -> None:
    before, after = one(FUSED), one(SEPARATE, 30.0)

    def runner(v: Version) -> object:
        raise MirageError("no compiler takes it")

    found = succeed(before, after, [SMALL], Duels(60.0, runner, lambda _: []))
    assert graph_at(found, SMALL) is SEPARATE.graph and found.versions[0].timing == Timing(30.0, 30.0, 3)


def test_without_time_nothing_is_called() -> None:
    compared = Duels(0.0, lambda _: None, lambda _: [])
    assert compared(SMALL, version(FUSED), version(SEPARATE), True) is None
