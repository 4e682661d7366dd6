"""Inputs whose contents never change: named in options, kept in files, packed by the kernels that win."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.cache import ResultStore
from mirage.errors import FormatError, InputError, ScheduleError
from mirage.ir.codec import encode
from mirage.kernels.cpu.emit.stages import computed_once
from mirage.kernels.cpu.launch import packing
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.launch.packing import packed_variants
from mirage.kernels.cpu.model.cost import CostModel
from mirage.kernels.cpu.processor import processor
from mirage.kernels.cpu.schedules.scheduler import machine_of
from mirage.kernels.profile import Timing
from mirage.mugraph.degree import analyze
from mirage.results.cpu.result import Superoptimized
from mirage.search import tune
from mirage.search.candidates import Candidate
from mirage.search.explore import Explorer
from mirage.verify.equivalence import Verifier
from tests.api.small import BUDGET, arrays, check, limit_tuning, loaded
from tests.kernels.kernels import single_kernel
from tests.modelled import modelled


@mi.program(x=mi.tensor("b", 64), w=mi.tensor("n", 64), sizes={"b": 2, "n": 100}, constants=("w",))
def linear(x: Any, w: Any) -> Any:
    """A linear layer with its norm, whose weight is stored as torch does."""
    return mi.rms_norm(x) @ w.mT


def plain(**more: Any) -> Superoptimized:
    return mi.superoptimize(linear, **{"budget": BUDGET, "cache": False, **more})


def packable(constants: Collection[str] = ("w",)) -> Superoptimized:
    """A result that runs a kernel."""
    return modelled(linear.trace(), linear.sizes["default"], constants=constants)


def test_constants_are_those_of_the_function_unless_given() -> None:
    assert linear.constants == ("w",)
    assert plain(budget=0.3).constants == ("w",)
    assert plain(budget=0.3, constants=()).constants == ()
    assert plain(budget=0.3, constants=["w", "x"]).constants == ("x", "w")


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        (("v",), "constant 'v' is not an input; the inputs are x, w"),
        ("w", "constants='w' is not a collection of names"),
        (3, "constants=3 is not a collection"),
        ((1,), "constant 1 is not an input"),
    ],
)
def test_wrong_constants(constants: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"superoptimize: {message}"):
        plain(constants=constants)
    with pytest.raises(InputError, match=f"program: {message}"):
        mi.program(x=mi.tensor("b", 64), w=mi.tensor(64, "n"), constants=constants)(lambda x, w: x @ w)


def test_kernels_are_made_with_the_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[CpuExecutable, Collection[str]]] = []
    init = CpuExecutable.__init__

    def spy(self: CpuExecutable, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        made.append((self, args[4]))

    monkeypatch.setattr(CpuExecutable, "__init__", spy)
    for constants in (("w",), ()):
        plain(constants=constants)
        assert {tuple(c) for _, c in made} == {constants}
        made.clear()


def test_packed_schedules_are_tried_first_where_a_kernel_did_well() -> None:
    graph = single_kernel(linear.trace())
    for constants in (("w",), ()):
        explorer = Explorer({"b": 2, "n": 100}, CostModel(machine_of(processor())), [], constants)
        explorer.add([Candidate(graph, Verifier(linear.trace()).admit(graph), analyze(graph), 1.0)])
        (pair,) = explorer.wave(1)
        explorer.learn({pair: Timing(1.0, 1.0, 1)})
        packed = [s for _, s in explorer.wave(6) if s.kernels[0].packed]
        assert packed == packed_variants(graph, pair[1], constants, {"b": 2, "n": 100})
        assert bool(packed) == bool(constants)


def test_what_follows_from_constants_is_computed_once_by_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_tuning(monkeypatch.setattr, kernels=12)
    # what is found while kernels are compiled is a matter of the machine: all is found before many are
    monkeypatch.setattr(tune, "PATIENCE", 1)
    square = mi.tensor(64, 64)
    program = mi.trace(lambda x, a, b: x @ a + x @ b, x=mi.tensor(4, 64), a=square, b=square)
    r = mi.superoptimize(program, constants=("a", "b"), budget=BUDGET, cache=False)
    measured = [c for c in r.graphs if c.tried]
    once = [c for c in measured if computed_once(c.graph, r.constants, c.maximum)]
    assert once and len(once) < len(measured)
    inputs = arrays(program, {})
    for c in once:
        assert c.executable is not None
        check(program, c.executable(inputs, {}), inputs, {})


def with_packed_kernel(r: Superoptimized, path: Path) -> dict[str, Any]:
    """Saves the result with the schedule of its version changed to a packed one, as if this had won; what was written."""
    r.save(path)
    obj: dict[str, Any] = json.loads(path.read_text())
    c = r.best.candidate
    assert c is not None and c.schedule is not None
    *_, variant = packed_variants(c.graph, c.schedule, ["w"], r.sizes)
    obj["decision"]["versions"][0]["schedule"] = encode(variant)
    path.write_text(json.dumps(obj))
    return obj


def packed_kernel(r: Superoptimized) -> CpuExecutable:
    """The kernel that a result runs, which reads packed copies."""
    assert r.best.candidate is not None
    exe = r.best.candidate.executable
    assert exe is not None and exe.emitted.packed
    return exe


def test_saved_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # narrow enough for several tiles
    monkeypatch.setattr(packing, "NARROW", 16)
    path = tmp_path / "linear.json"
    obj = with_packed_kernel(packable(), path)
    result = loaded(path)
    assert result.constants == ("w",)
    exe = packed_kernel(result)
    for n in (1, 16, 100, 101):
        sizes = {"b": 3, "n": n}
        inputs = arrays(result.program, sizes)
        check(result.program, exe(inputs, sizes), inputs, sizes)
    result.save(path)
    assert mi.load(path).constants == ("w",)
    for constants, error in (([], ScheduleError), (["v"], FormatError), ("w", FormatError), ([["w"]], FormatError)):
        path.write_text(json.dumps({**obj, "constants": constants}))
        with pytest.raises(error):
            mi.load(path)
    # a file of before there were constants
    packable(constants=()).save(path)
    obj = json.loads(path.read_text())
    assert "constants" not in obj
    path.write_text(json.dumps(obj))
    assert mi.load(path).constants == ()


def test_forget(tmp_path: Path) -> None:
    path = tmp_path / "linear.json"
    with_packed_kernel(packable(), path)
    r = loaded(path)
    assert packed_kernel(r)
    x, w = arrays(r.program, {"b": 2, "n": 100})
    first = r(x, w)
    w *= 2
    np.testing.assert_array_equal(r(x, w), first)
    r.forget()
    np.testing.assert_allclose(r(x, w), 2 * first, rtol=1e-4)


def test_recalled_with_the_same_constants_only(tmp_path: Path) -> None:
    store = ResultStore(f"sqlite:///{tmp_path}/results.sqlite")
    assert plain(cache=store).tune_stop != "from the cache"
    assert plain(cache=store).tune_stop == "from the cache"
    other = plain(cache=store, constants=())
    assert other.tune_stop != "from the cache"
    assert not any(c.executable is not None and c.executable.emitted.packed for c in other.graphs)
    assert plain(cache=store).constants == ("w",)


def test_lazy_results_know_the_constants() -> None:
    lazy = mi.superoptimized(options={"budget": 0.5, "cache": False})(linear)
    x, w = arrays(linear.trace(), {"b": 2, "n": 100})
    np.testing.assert_allclose(lazy(x, w), lazy(x, w.copy()), rtol=1e-6)
    assert lazy.result is not None and lazy.result.constants == ("w",)
