"""Equal loops that need nothing of one another become one, whose halves run side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage.compilation import compile as compile_program
from mirage.compiler.passes import dead_code, join_loops
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import Loop, Module
from mirage.ir.graph.parse import parse_module
from mirage.kernels.cpu.launch.rounds import LaunchedLoop
from mirage.runtime.executable import Executable
from tests.compiler.passes.running import after, assert_equal

BODY = """
def {name}(i: int64[()], h: float32[b, 8], o: float32[6, b, 8], x: float32[6, b, 8], w: float32[8, 8]):
    with dataflow():
        a = take(x, i, axis=0)
        p = matmul(h, w)
        s = add(a, p)
        y = {function}(s)
    e = packed["scatter_", float32[6, b, 8], in_place[0]](o, i, y, axis=0)
    with dataflow():
        r = (y, o)
    return r
"""
MAIN = """
def main(x: float32[6, b, 8], h: float32[b, 8], w: float32[8, 8], v: float32[8, 8]):
    with dataflow():
        o = full(shape=(6, b, 8), value=0, dtype='float32')
        {before}
    f = loop[forward]((h, o), (x, w), count={count})
    with dataflow():
        {between}
        q = full(shape=(6, b, 8), value=0, dtype='float32')
    g = loop[backward](({state}, q), ({given}, v), count={other})
    with dataflow():
        {behind}
    return r
"""
PLAIN = {
    "before": "z = flip(x, axes=(0,))", "count": "6", "between": "k = item[1](f)", "state": "h", "given": "z", "other": "6",
    "behind": "l = item[1](g)\n        r = (k, l)",
}  # fmt: skip


def module(function: str = "tanh", **parts: str) -> Module:
    bodies = [BODY.format(name=name, function=f) for name, f in (("forward", "tanh"), ("backward", function))]
    return parse_module("".join([MAIN.format(**PLAIN | parts), *bodies]))


def loops(of: Module) -> list[Loop]:
    return [b.value for b in of.functions["main"].bindings if isinstance(b.value, Loop)]


def arrays(b: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(b)
    return [rng.standard_normal(s).astype(np.float32) / 2 for s in ((6, b, 8), (b, 8), (8, 8), (8, 8))]


@pytest.mark.parametrize(
    "parts",
    [
        {},
        # what the second one reads is computed before both, and what reads the first one behind both
        {"between": "k = item[1](f)\n        d = tanh(k)\n        z = neg(x)", "before": "pass",
         "behind": "l = item[1](g)\n        r = (d, l)"},
        {"behind": "l = item[0](f)\n        r = (k, l, g)"},
    ],
)  # fmt: skip
def test_they_become_one(parts: dict[str, str]) -> None:
    old = module(**parts)
    new = after(old, join_loops.run, dead_code.run)
    (loop,) = loops(new)
    assert loop.carried == 4 and set(new.functions) == {"main", loop.body}
    assert_equal(run_module(new, arrays()), run_module(old, arrays()))


@pytest.mark.parametrize(
    "parts",
    [
        {"given": "k"},
        {"state": "j", "between": "k = item[1](f)\n        j = item[0](f)"},
        {"function": "sin"},
        {"other": "5"},
    ],
    ids=["reads it", "goes on from it", "other calls", "other rounds"],
)
def test_what_stays_apart(parts: dict[str, str]) -> None:
    old = module(**parts)
    new = after(old, join_loops.run, dead_code.run)
    assert len(loops(new)) == 2
    assert_equal(run_module(new, arrays()), run_module(old, arrays()))


def test_a_tensor_that_both_write_keeps_them_apart() -> None:
    text = MAIN.format(**PLAIN | {"between": "k = item[0](f)"}).replace("({state}, q)", "(h, o)").replace("(h, q)", "(h, o)")
    bodies = [BODY.format(name=name, function="tanh") for name in ("forward", "backward")]
    assert len(loops(after(parse_module(text + "".join(bodies)), join_loops.run))) == 2


def test_a_view_that_one_writes_keeps_what_reads_the_tensor_behind_it() -> None:
    """What is between the loops would be computed before both."""
    text = MAIN.replace("x: float32[6, b, 8], h", "x: float32[6, b, 8], s: float32[48, b], h")
    text = text.replace("o = full(shape=(6, b, 8), value=0, dtype='float32')", "o = reshape(s, shape=(6, b, 8))")
    parts = {"between": "k = neg(s)", "behind": "l = item[1](g)\n        r = (k, l)"}
    bodies = [BODY.format(name=name, function="tanh") for name in ("forward", "backward")]
    old = parse_module("".join([text.format(**PLAIN | parts), *bodies]))
    new = after(old, join_loops.run, dead_code.run)
    assert len(loops(new)) == 2
    x, *rest = arrays()
    assert_equal(*(run_module(m, [x, np.zeros((48, 3), np.float32), *rest]) for m in (new, old)))


def compiled(of: Module) -> Executable:
    found = compile_program(of, without=("superoptimize",), cache=False)
    assert isinstance(found, Executable)
    return found


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_halves_run_side_by_side(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two have no call in common, and are measured where there are more threads than halves."""
    monkeypatch.setenv("MIRAGE_NUM_THREADS", threads)
    loops: list[LaunchedLoop] = []
    init = LaunchedLoop.__init__

    def noted(self: LaunchedLoop, *args: Any) -> None:
        init(self, *args)
        loops.append(self)

    monkeypatch.setattr(LaunchedLoop, "__init__", noted)
    run = compiled(module())
    for b in (1, 4, 0, 30):
        for _ in range(8):
            got = run(*arrays(b))
            assert_equal(tuple(got), run_module(module(), arrays(b)), 1e-5)
    assert len(loops) == 3
    for loop in loops:
        assert len(loop.parts) == 2
        apart, together = loop._args.calls
        assert apart + together >= 8
        assert {"1": not together, "2": not apart}.get(threads, apart >= 3 and together >= 3)


def test_what_fails_in_one_half_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    run = compiled(module())

    def failing(self: LaunchedLoop, first: int, end: int) -> int:
        self._args.failed = 1
        self.parts[1]._args.failed = 1
        return 1

    monkeypatch.setattr(LaunchedLoop, "_some", failing)
    with pytest.raises(Exception, match="memory") as caught:
        run(*arrays())
    assert any("backward" in note or "forward" in note or "body" in note for note in getattr(caught.value, "__notes__", [""]))
