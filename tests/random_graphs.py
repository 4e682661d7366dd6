"""Random modules of the graph compiler with sizes and arguments, each made again from its seed, and smaller failing ones.

case = random_case(seed)                       a module, sizes of its dims, arguments: always the same for a seed
assert_close(case, run(case.module, case.args))
print(shrink(case, lambda c: not works(c)))    the smallest part of it that still fails, as text
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from mirage.errors import AttributeValueError, DimError, DTypeError, GraphError, InputError, MirageError, ShapeError
from mirage.ir.annotations import PartialTensor
from mirage.ir.dims import evaluate, symbol, to_dim
from mirage.ir.graph.check import check
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import (
    Binding,
    Block,
    Function,
    FunctionCall,
    If,
    Loop,
    MakeTuple,
    MatchCast,
    Module,
    TupleItem,
    Var,
)
from mirage.ir.graph.order import reachable
from mirage.ir.graph.text import print_module
from mirage.ir.graph.traverse import determined, signature_symbols, symbols_used, variables
from mirage.ir.types import DTYPES, TensorType, epsilon, largest
from tests.random_graph_steps import (
    IN_PLACE,
    STEPS,
    Value,
    Writer,
    generalized,
    match_cast,
    random_array,
    squashed,
)

#: one, primes, a vector, more than one
SIZES = (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33)
#: elements of the largest value
MOST_ELEMENTS = 20_000

_DIMS = ["m", "n", "k", "m", "n", 1, 3, 8, "2*n", "m + 1"]
_REFUSED = (ShapeError, DTypeError, AttributeValueError, DimError, GraphError)


@dataclass(frozen=True)
class Case:
    """A module with arguments that it takes; `str(case)` is enough to see, `random_case(case.seed)` to make it again."""

    seed: int
    module: Module
    sizes: dict[str, int]
    args: tuple[np.ndarray, ...]

    def copies(self) -> list[np.ndarray]:
        """The arguments, for a run that may write to them."""
        return [a.copy() for a in self.args]

    def __str__(self) -> str:
        shapes = ", ".join(f"{a.dtype}{list(a.shape)}" for a in self.args)
        return f"# random_case({self.seed}), sizes {self.sizes}, arguments {shapes}\n{print_module(self.module)}"


def random_case(seed: int, operators: int = 12) -> Case:
    """A well-formed module of about so many operators in its main function, sizes, some of them 1 or 0, and arguments."""
    rng = Random(seed)
    while True:
        module = random_module(rng, rng.randint(1, operators))
        names = sorted(signature_symbols(module.functions[module.main]))
        for attempt in range(30):
            choices = (
                (0, 0, *SIZES[:5]) if attempt < 3 and rng.random() < 0.1 else SIZES if attempt < 15 else SIZES[3:8]
            )
            sizes = {s: rng.choice(choices) for s in names}
            if _elements(module, sizes) > MOST_ELEMENTS:
                continue
            case = Case(seed, module, sizes, _arguments(rng, module, sizes))
            try:
                run_module(module, case.copies())
            except (InputError, DimError):
                # what a slice or an index needs rules out some sizes; a mask without elements may rule out all
                continue
            return case


def _elements(module: Module, sizes: dict[str, int]) -> float:
    """Elements of the largest value of main at these sizes, as far as they tell."""
    most = 0.0
    for b in module.functions[module.main].bindings:
        t = b.var.annotation
        if isinstance(t, TensorType) and t.symbols() <= sizes.keys():
            try:
                most = max(most, float(np.prod([evaluate(d, sizes) for d in t.shape], dtype=float)))
            except DimError:
                return float("inf")
    return most


def _arguments(rng: Random, module: Module, sizes: dict[str, int]) -> tuple[np.ndarray, ...]:
    types = [p.annotation for p in module.functions[module.main].parameters]
    return tuple(random_array(rng, t.bind(sizes), t.dtype) for t in types if isinstance(t, TensorType))


def random_module(rng: Random, operators: int) -> Module:
    """A module of a main function and, often, others that it calls, branches to, or repeats."""
    functions: dict[str, Function] = {}
    w = Writer(rng, "main", functions)
    float_ = rng.choice(["float32"] * 8 + ["float64", "float16", "bfloat16"])
    pool = [to_dim(d) for d in rng.sample(_DIMS, 4)]
    for i in range(rng.randint(1, 4)):
        shape = tuple(rng.sample(pool, rng.choice((0, 1, 2, 2, 2, 3))))
        dtype = float_ if i == 0 else rng.choice([float_] * 6 + ["int64", "int32", "bool"])
        w.parameter(f"x{i}", TensorType(shape, dtype))
    annotations = [p.annotation for p in w.builder.parameters]
    for name in sorted(
        set().union(*(t.symbols() for t in annotations if isinstance(t, TensorType))) - determined(annotations)
    ):
        w.parameter(f"size_{name}", TensorType((symbol(name),), float_))
    _fill(w, operators, [*STEPS, *_CALLS, *_CALLS, (2, IN_PLACE)])
    functions["main"] = w.builder.finish(_result(w))
    module = Module(functions)
    check(module)
    return module


def _fill(w: Writer, operators: int, steps: Any) -> None:
    weights, kinds = zip(*steps, strict=True)
    goal = len(w.values) + operators
    while len(w.values) < goal:
        (step,) = w.rng.choices(kinds, weights)
        try:
            step(w)
        except _REFUSED:
            # operands that do not fit each other
            continue


def _result(w: Writer) -> Var:
    """The last value, or a tuple of some."""
    last = w.values[-1].var
    others = w.rng.sample(w.values, min(w.rng.choice((0, 0, 1, 2)), len(w.values)))
    if not others:
        return last
    return w.builder.emit(MakeTuple(tuple(dict.fromkeys([last, *(v.var for v in others)]))))


def _callee(w: Writer, hint: str, given: list[TensorType], steps: int, index: bool = False) -> Writer:
    """A function of `w` under construction, with parameters to which its values fit."""
    functions = w.builder.functions
    # callees of the new function are added before it
    callee = Writer(w.rng, f"{hint}_{w.depth}_{len(functions)}", functions)
    callee.depth = w.depth + 1
    if index:
        callee.builder.parameter("i", TensorType((), "int64"))
    for i, t in enumerate(given):
        callee.parameter(f"a{i}", t)
    bound = determined(p.annotation for p in callee.builder.parameters)
    if not set().union(*(t.symbols() for t in given)) <= bound:
        raise ShapeError("a dim that the arguments do not tell")
    _fill(callee, steps, [*STEPS, *_CALLS] if callee.depth < 3 else STEPS)
    return callee


def _add(w: Writer, callee: Writer, result: Var, dims: tuple[str, ...] = ()) -> str:
    functions = w.builder.functions
    assert isinstance(functions, dict)
    functions[callee.builder.name] = callee.builder.finish(result, dims=dims)
    return callee.builder.name


def _operands(w: Writer) -> list[Value]:
    found = [w.pick() for _ in range(w.rng.randint(1, 3))]
    w.shared |= {v.var for v in found}
    return found


def _known(w: Writer, var: Var) -> None:
    """Note the result of a call, whose magnitudes the caller does not know."""
    w.shared.add(var)
    t = var.annotation
    if isinstance(t, PartialTensor) and t.shape is not None:
        squashed(w, match_cast(w, var, t.dtype not in DTYPES, 1.0))
    elif isinstance(t, TensorType):
        squashed(w, Value(var, t.dtype not in DTYPES, 1.0))


def _call(w: Writer) -> None:
    """A call of a function with symbolic dims of its own; sometimes an extra shape argument."""
    args = _operands(w)
    callee = _callee(w, "sub", generalized([v.type for v in args]), w.rng.randint(1, 4))
    dims: tuple[str, ...] = ()
    if w.rng.random() < 0.3:
        dims = ("extra",)
        filled = callee.op("full", shape=(symbol("extra"), 2), value=1, dtype="float32")
        result = callee.builder.emit(MakeTuple((callee.values[-1].var, filled)))
    else:
        result = callee.values[-1].var
    name = _add(w, callee, result, dims)
    found = w.builder.emit(FunctionCall(name, tuple(v.var for v in args), tuple(w.rng.choice(w.dims) for _ in dims)))
    for var in [w.builder.emit(TupleItem((found,), k)) for k in range(2)] if dims else [found]:
        _known(w, var)


def _if_else(w: Writer) -> None:
    flags = [v.var for v in w.values if v.type.dtype == "bool" and not v.rank]
    condition = w.rng.choice(flags) if flags else w.op("less", w.op("dim_value", dim=w.rng.choice(w.dims)), w.number(6))
    args = _operands(w)
    given = generalized([v.type for v in args])
    then = _callee(w, "then", given, w.rng.randint(1, 3))
    result = then.values[-1]
    names = [_add(w, then, result.var)]
    orelse = _callee(w, "else", given, w.rng.randint(1, 3))
    same = [v for v in orelse.values if v.type == result.type] or [
        v for v in orelse.values if v.type.dtype == result.type.dtype and v.rank == result.rank
    ]
    if not same:
        raise ShapeError("the branches have no result in common")
    names.append(_add(w, orelse, same[-1].var))
    _known(w, w.builder.emit(If((condition, *(v.var for v in args)), names[0], names[1])))


def _loop(w: Writer) -> None:
    carried, invariant = _operands(w)[:2], _operands(w)[:1]
    given = generalized([v.type for v in (*carried, *invariant)])
    body = _callee(w, "body", given, w.rng.randint(1, 3), index=True)
    results = [squashed(body, [v for v in body.values if v.type == t][-1]).var for t in given[: len(carried)]]
    name = _add(w, body, results[0] if len(results) == 1 else body.builder.emit(MakeTuple(tuple(results))))
    args = tuple(v.var for v in (*carried, *invariant))
    count = to_dim(w.rng.choice((0, 1, 3)))
    if w.rng.random() < 0.3:
        rounds = w.op("remainder", w.op("dim_value", dim=w.rng.choice(w.dims)), w.number(4))
        found = w.builder.emit(Loop(name, (rounds, *args), len(carried), None, to_dim(4)))
    else:
        found = w.builder.emit(Loop(name, args, len(carried), count))
    items = [found] if len(carried) == 1 else [w.builder.emit(TupleItem((found,), k)) for k in range(len(carried))]
    for var in items:
        _known(w, var)


#: the steps that call functions
_CALLS = ((2, _call), (1, _if_else), (1, _loop))


def assert_close(case: Case, found: Any, args: list[np.ndarray] | None = None) -> None:
    """`found`, the result of a run of the case, is what the interpreter gives in float64, but for rounding.

    How much that is, a run in the module's own types shows, and the size of the arguments: sums may cancel. Numbers near the
    end of a type's range are not compared. With `args`, those are the arguments after the run, of which some may have been
    written to.
    """
    exact_args = [a.astype(np.float64) if a.dtype.name in DTYPES else a.copy() for a in case.args]
    exact = run_module(case.module, exact_args, wide=True)
    own_args = case.copies()
    own = run_module(case.module, own_args)
    sizes = [float(np.max(np.abs(a[np.isfinite(a)]), initial=0)) for a in exact_args if a.dtype == np.float64]
    given = max(sizes, default=0.0)
    try:
        _assert_close(found, exact, own, given, "result")
        if args is not None:
            _assert_close(tuple(args), tuple(exact_args), tuple(own_args), given, "arguments")
    except AssertionError as e:
        raise AssertionError(f"{e}\n{case}") from None


def _assert_close(found: Any, exact: Any, own: Any, given: float, where: str) -> None:
    """`given` is the size of the largest number among the arguments."""
    if isinstance(own, tuple):
        assert isinstance(found, tuple | list) and len(found) == len(own), (
            f"{where}: {len(found)} values, not {len(own)}"
        )
        for k, group in enumerate(zip(found, exact, own, strict=True)):
            _assert_close(*group, given, f"{where}[{k}]")
        return
    found, own = np.asarray(found), np.asarray(own)
    assert found.shape == own.shape and found.dtype == own.dtype, (
        f"{where}: {found.dtype}{list(found.shape)}, not {own.dtype}{list(own.shape)}"
    )
    if own.dtype.name not in DTYPES:
        wrong = found != exact
        assert not np.any(wrong), f"{where}: {np.count_nonzero(wrong)} of {wrong.size} elements differ"
        return
    got, near = found.astype(np.float64), own.astype(np.float64)
    compared = np.isfinite(exact) & (np.abs(exact) < largest(own.dtype) / 1e3)
    if not compared.any():
        return
    scale = float(np.max(np.abs(exact[compared])))
    allowed = 32 * float(np.max(np.abs(near - exact)[compared])) + epsilon(own.dtype) * (64 * scale + 8 * given)
    error = np.abs(got - exact)[compared]
    worst = float(np.max(error))
    assert worst <= allowed, f"{where}: off by {worst:.3g} of {scale:.3g}; {allowed:.3g} is allowed"


def shrink(case: Case, fails: Callable[[Case], bool]) -> Case:
    """A part of the case, as small as found, for which `fails` holds, too; bindings left out become parameters, or go."""
    while True:
        for smaller in _smaller(case):
            if fails(smaller):
                case = smaller
                break
        else:
            return case


def _smaller(case: Case) -> Iterator[Case]:
    """Modules with a part of main, with the arguments that they take: large steps first."""
    main = case.module.functions[case.module.main]
    if isinstance(main.result, Var):
        made = {b.var: b.value for b in main.bindings}.get(main.result)
        candidates = [b.var for b in main.bindings if b.var is not main.result]
        if isinstance(made, MakeTuple):
            candidates = [a for a in made.args if isinstance(a, Var)] + candidates
        for var in candidates:
            yield from _with_main(case, main.parameters, main.bindings, var)
    for b in main.bindings:
        if isinstance(b.var.annotation, TensorType):
            rest = tuple(other for other in main.bindings if other is not b)
            yield from _with_main(case, (*main.parameters, b.var), rest, main.result)


def _with_main(case: Case, parameters: tuple[Var, ...], bindings: tuple[Binding, ...], result: Any) -> Iterator[Case]:
    """The case with this main function, without what it does not need; nothing where that is not well-formed, or not smaller."""
    old = case.module.functions[case.module.main]
    needed = {result} if isinstance(result, Var) else set()
    kept: list[Binding] = []
    symbols: set[str] = set()
    for b in reversed(bindings):
        casts = isinstance(b.value, MatchCast) and symbols & symbols_used(b.value)
        if b.var in needed or casts:
            kept.append(b)
            needed.update(variables(b.value))
            symbols |= symbols_used(b.value)
    blocks = (Block(tuple(reversed(kept)), dataflow=False),)
    used = tuple(p for p in parameters if p in needed)
    for taken in (used, parameters):
        main = Function(old.name, taken, blocks, result)
        if len(main.bindings) + len(taken) / 100 >= len(old.bindings) + len(old.parameters) / 100:
            continue
        module = case.module.with_function(main)
        module = Module({n: f for n, f in module.functions.items() if n in reachable(module)}, {}, module.main)
        try:
            check(module)
            args = _arguments(Random(case.seed), module, case.sizes)
            run_module(module, [a.copy() for a in args])
        except (MirageError, KeyError):
            continue
        yield Case(case.seed, module, case.sizes, args)
        return
