"""The machine in C: what it reads, how deep and how long it runs, who owns results, and code that is not as it should be."""

from __future__ import annotations

import gc
import signal
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import FormatError, InputError, MirageError
from mirage.ir.annotations import DataType, ReferenceType
from mirage.ir.data import LIST, OPTION, Record
from mirage.ir.graph.patterns import Bind, Case, Fields, Wildcard
from mirage.runtime import program as vm
from mirage.runtime.vm import VirtualMachine

#: without C, which takes longer to compile than to run
PLAIN = ("fuse", "libraries")
VECTOR = mi.tensor("n")
ONES = np.ones(3, np.float32)


@mi.function(xs=mi.List(VECTOR), done=mi.List(VECTOR))
def backwards(xs: Any, done: Any) -> Any:
    return mi.match(xs, {mi.Nil: lambda: done, mi.Cons: lambda x, rest: backwards(rest, mi.Cons(x, done))})


def test_moves_alone_call_nothing_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    from mirage.runtime.function import Function

    run = mi.compile(backwards, without=PLAIN)
    monkeypatch.delattr(Function, "run")
    xs = [np.full(1, k, np.float32) for k in range(5_000)]
    assert [float(x[0]) for x in run(xs, [])] == [*range(4_999, -1, -1)]


def test_signals_have_their_turn() -> None:
    @mi.function(xs=mi.List(VECTOR))
    def endless(xs: Any) -> Any:
        return mi.match(xs, {mi.Nil: lambda: ONES, mi.Cons: lambda x, rest: endless(mi.Cons(x, rest))})

    class Stopped(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stopped

    run = mi.compile(endless, without=PLAIN)
    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Stopped) as e:
            run([ONES])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert any("in function" in note for note in e.value.__notes__)
    assert (run([]) == 1).all()


def test_arrays_that_are_not_as_they_should_be_are_converted() -> None:
    run = mi.compile(backwards, without=PLAIN)
    wide = np.arange(12, dtype=np.float32).reshape(4, 3).T
    other = np.arange(4, dtype=np.float32).astype(np.dtype("float32").newbyteorder("S").newbyteorder("="))
    odd = np.frombuffer(bytes(1) + np.arange(4, dtype=np.float32).tobytes(), np.uint8)[1:].view(np.float32)
    given = [wide[1], other, odd, np.ones(4, np.float32)]
    for found, wanted in zip(run(given, []), reversed(given), strict=True):
        np.testing.assert_array_equal(found, np.asarray(wanted))
    with pytest.raises(MirageError, match="input 'xs', item 1 has dtype float64"):
        run([ONES, ONES.astype(np.float64)], [])


def test_parts_that_are_shared_are_read_once() -> None:
    @mi.function(t=mi.Tree(VECTOR))
    def root(t: Any) -> Any:
        return mi.match(t, {mi.Leaf: lambda x: x, mi.Rose: lambda x, below: x})

    run = mi.compile(root, without=PLAIN)
    tree: Any = mi.Leaf(ONES)
    for k in range(200):
        tree = mi.Rose(k * ONES, [tree, tree])
    assert (run(tree) == 199).all()
    tree.children.append(tree)
    with pytest.raises(InputError, match=r"input 't'.children, item 2 is a part of itself"):
        run(tree)


def test_a_class_may_compute_its_fields() -> None:
    class Computed(mi.Leaf):
        def __getattribute__(self, name: str) -> Any:
            return 5 * ONES if name == "value" else object.__getattribute__(self, name)

    def more(ts: Any) -> Any:
        return mi.map(lambda t: mi.match(t, {mi.Leaf: lambda x: x + 1, mi.Rose: lambda x, below: x}), ts)

    run = mi.compile(more, {"ts": mi.List(mi.Tree(VECTOR))}, without=PLAIN)
    assert [float(a[0]) for a in run([mi.Leaf(ONES), Computed(ONES)])] == [2, 6]


@pytest.mark.parametrize("n", [3, 5_000])
def test_results_are_nobody_elses(n: int) -> None:
    def program(xs: Any, y: Any) -> Any:
        z = y + 1
        return backwards(xs, mi.Nil()), (y, z, z), mi.Cons(z, mi.Nil())

    run = mi.compile(program, {"xs": mi.List(VECTOR), "y": VECTOR}, without=PLAIN)
    xs, y = [np.full(n, k, np.float32) for k in range(3)], np.full(n, 9, np.float32)
    found, (a, b, c), (d,) = run([*xs, xs[0]], y)
    arrays = [*found, a, b, c, d]
    assert [float(v[0]) for v in arrays[:7]] == [0, 2, 1, 0, 9, 10, 10]
    everything = [*arrays, *xs, y]
    for k, v in enumerate(arrays):
        assert v.flags.writeable and v.flags.c_contiguous
        assert not any(np.shares_memory(v, other) for other in everything[k + 1 :])


def test_nothing_is_kept() -> None:
    def program(x: Any, y: Any) -> Any:
        r = mi.ref(x)
        mi.write(r, mi.read(r) * y)
        return mi.map(lambda v: v + mi.read(r), backwards([x, y], mi.Nil()))

    run = mi.compile(program, {"x": VECTOR, "y": VECTOR}, without=PLAIN)
    x, y = 2 * ONES, 3 * ONES
    count = sys.getrefcount(x)
    assert [float(a[0]) for a in run(x, y)] == [9, 8]
    with pytest.raises(MirageError):
        run(x, np.ones(4, np.float32))
    assert sys.getrefcount(x) == count
    gone = weakref.ref(x)
    del x
    assert gone() is None
    machine = weakref.ref(run)
    del run
    gc.collect()
    assert machine() is None


def program_of(*code: vm.Instruction) -> vm.VMProgram:
    """A program of two vectors whose main function is stacked: it makes itself a value first."""
    given = tuple(vm.Parameter(f"x{k}", VECTOR) for k in range(2))
    first = vm.MakeClosure(2, "main", ())
    registers = max([2, *(getattr(i, "out", 0) for i in code)]) + 1
    return vm.VMProgram({"main": vm.VMFunction("main", given, (first, *code), registers)})


CASES = (Case(LIST, 0), Case(LIST, 1, (Bind("x"), Wildcard())))
#: code that is well formed, and takes values for what they are not
CONFUSED: list[Callable[[], vm.VMProgram]] = [
    lambda: program_of(vm.GetItem(3, 0, 0), vm.Return(3)),
    lambda: program_of(vm.MakeTuple(3, (0,)), vm.GetItem(4, 3, 1), vm.Return(4)),
    lambda: program_of(vm.MakeTuple(3, (0,)), vm.GetItem(4, 3, -1), vm.Return(4)),
    lambda: program_of(vm.CallValue(3, 0, ()), vm.Return(3)),
    lambda: program_of(vm.CallValue(3, 2, (0,)), vm.Return(3)),
    lambda: program_of(vm.Reference(3, "read", (0,)), vm.Return(3)),
    lambda: program_of(vm.Reference(3, "write", (2, 0)), vm.Return(3)),
    lambda: program_of(vm.Match(3, 0, CASES, ("main", "main"), (0, 1)), vm.Return(3)),
    lambda: program_of(vm.Construct(3, OPTION, 0, ()), vm.Match(4, 3, CASES[1:], ("main",), (0,)), vm.Return(4)),
    lambda: program_of(vm.MakeTuple(3, (0,)), vm.Match(4, 3, (Fields((Bind("a"), Bind("b"))),), ("main",), ()), vm.Return(4)),
    lambda: program_of(vm.Free((0,)), vm.MakeTuple(3, (0,)), vm.Return(3)),
    lambda: program_of(vm.ShapeOf(3, 2), vm.Return(3)),
    lambda: program_of(vm.Loop(3, "main", (0,), (), None, None), vm.Return(3)),
    lambda: program_of(vm.Return(2)),
]


@pytest.mark.parametrize("k", range(len(CONFUSED)))
def test_values_are_what_they_are(k: int) -> None:
    with pytest.raises(MirageError):
        VirtualMachine(CONFUSED[k]())(ONES, ONES)


BAD_CODE = [
    ((vm.Construct(3, OPTION, 2, ()), vm.Return(3)), "no such constructor"),
    ((vm.Construct(3, OPTION, -1, ()), vm.Return(3)), "no such constructor"),
    ((vm.Construct(3, OPTION, 1, ()), vm.Return(3)), "no such constructor"),
    ((vm.Match(3, 0, CASES, ("main",), ()), vm.Return(3)), "a function for each pattern"),
    ((vm.Reference(3, "write", (0,)), vm.Return(3)), "with references"),
    ((vm.Reference(3, "other", (0,)), vm.Return(3)), "with references"),
    ((vm.CallFunction(3, "main", (0, 1), mi.tensor(4).shape), vm.Return(3)), "0 extra dims"),
]


@pytest.mark.parametrize("k", range(len(BAD_CODE)))
def test_code_is_checked(k: int) -> None:
    code, message = BAD_CODE[k]
    with pytest.raises(FormatError, match=message):
        VirtualMachine(program_of(*code))


@pytest.mark.parametrize("registers", [1, 1_000_000_000])
def test_registers_are_those_of_values(registers: int) -> None:
    given = (vm.Parameter("x", VECTOR), vm.Parameter("y", VECTOR))
    code = (vm.MakeClosure(2, "main", ()), vm.Return(0))
    with pytest.raises(FormatError, match="registers"):
        VirtualMachine(vm.VMProgram({"main": vm.VMFunction("main", given, code, registers)}))


def test_types_are_declared() -> None:
    given = (vm.Parameter("x", DataType("Unknown", ())), vm.Parameter("r", ReferenceType(VECTOR)))
    code = (vm.MakeClosure(2, "main", ()), vm.Return(0))
    with pytest.raises(FormatError, match="no data type Unknown"):
        VirtualMachine(vm.VMProgram({"main": vm.VMFunction("main", given, code, 3)}))


def test_records_are_of_their_type() -> None:
    def given(o: Any) -> Any:
        return mi.match(o, {mi.Some: lambda x: x, mi.Nothing: lambda: ONES})

    run = mi.compile(given, {"o": mi.Option(VECTOR)}, without=PLAIN)
    assert (run(Record(OPTION, 1, (2 * ONES,))) == 2).all()
    for record in (Record(OPTION, 2, ()), Record(OPTION, -1, (ONES,)), Record(OPTION, 1, ()), Record(LIST, 0, ())):
        with pytest.raises(InputError, match="input 'o' is"):
            run(record)
