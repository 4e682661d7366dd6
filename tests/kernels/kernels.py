"""Programs as muGraphs of one or several kernels, schedules for them, and what their results are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

import ml_dtypes
import numpy as np

from mirage.ir.axes import AxisProgram, to_axes
from mirage.ir.interpret import run_reference
from mirage.ir.operator import Level
from mirage.ir.program import Program
from mirage.ir.types import DTYPES, ELEMENTS
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref, Role
from mirage.mugraph.schedule import KernelSchedule, Schedule
from mirage.search.accuracy import in_range
from mirage.verify.proof import prove


def single_kernel(program: Program, **roles: Role) -> MuGraph:
    """The program as one kernel with these roles (others: parallel in all outputs, whole elsewhere).

    A reduction over a loop axis is followed by its accumulator.
    """
    p = to_axes(program)
    free = set(p.axes).intersection(*({a for d in o.dims for a in d} for o in p.outputs))
    free -= set(p.reduction_axes()) | {a for n in p.nodes if n.joined for a in (n.joined[0], *n.joined[1])}
    used = {a for n in p.nodes for a in (*n.axes, *n.reduce)}
    role = {a: roles.get(a, Role.PARALLEL if a in free else Role.WHOLE) for a in p.axes if a in used}
    nodes: list[Node] = []
    new: dict[int, Ref] = {}
    inputs = iter(range(len(p.inputs)))
    for i, n in enumerate(p.nodes):
        dims = (tuple((a,) for a in n.axes),)
        if n.op == "input":
            k = next(inputs)
            nodes.append(Node("input", (), (p.inputs[k].dims,), (("index", k),)))
        else:
            nodes.append(Node(n.op, tuple(new[j] for j in n.operands), dims, n.attrs, n.reduce, n.joined))
            for a in n.reduce:
                if role[a] is Role.LOOP:
                    nodes.append(Node("accumulator", (Ref(len(nodes) - 1),), dims, (("mode", "sum"), ("axis", a))))
        new[i] = Ref(len(nodes) - 1)
    block = Graph(Level.BLOCK, tuple(nodes), tuple(new[o.value] for o in p.outputs), tuple(role.items()))
    return one_kernel(p, block)


def one_kernel(p: AxisProgram, block: Graph) -> MuGraph:
    """The muGraph of one kernel that reads all inputs."""
    outs = [block.nodes[r.node].axes() for r in block.outputs]
    full = [{a for d in o.dims for a in d} for o in p.outputs]
    dims = tuple(
        o.dims if set(axes) == own else tuple((a,) for a in axes)
        for o, axes, own in zip(p.outputs, outs, full, strict=True)
    )
    nodes = [Node("input", (), (x.dims,), (("index", k),)) for k, x in enumerate(p.inputs)]
    nodes.append(Node("graph", tuple(Ref(k) for k in range(len(p.inputs))), dims, graph=block))
    kernel = Graph(Level.KERNEL, tuple(nodes), tuple(Ref(len(p.inputs), k) for k in range(len(outs))))
    return MuGraph(p.name, p.axes, p.inputs, kernel, p.outputs, p.dtype)


def cut(program: Program, *parts: Sequence[int], loop: Sequence[str] = ()) -> MuGraph:
    """The program with these operators (indices into its nodes over axes) in one graph-defined kernel each.

    The other operators are predefined ones. Axes are parallel where they are in all results of a kernel, loops where
    `loop` names them and the kernel sums over them, else whole. A part contains all that lies between two of its
    operators.
    """
    p = to_axes(program)
    units = [tuple(u) for u in parts]
    scalars = {i for i, n in enumerate(p.nodes) if n.op in ("constant", "size")}
    alone = [i for i, n in enumerate(p.nodes) if n.op != "input" and not any(i in u for u in units)]
    read_alone = {j for i in alone for j in p.nodes[i].operands} | {o.value for o in p.outputs}
    units += [(i,) for i in alone if i not in scalars or i in read_alone]
    nodes = [Node("input", (), (x.dims,), (("index", k),)) for k, x in enumerate(p.inputs)]
    inputs = [i for i, n in enumerate(p.nodes) if n.op == "input"]
    new = {i: Ref(k) for k, i in enumerate(inputs)}
    while units:
        unit = next(u for u in units if all(j in new or j in (*u, *scalars) for i in u for j in p.nodes[i].operands))
        units.remove(unit)
        read = {j for i, n in enumerate(p.nodes) if i not in unit for j in n.operands} | {o.value for o in p.outputs}
        outputs = [i for i in unit if i in read]
        dims = tuple(tuple((a,) for a in p.nodes[i].axes) for i in outputs)
        if unit in [tuple(u) for u in parts]:
            outside = list(dict.fromkeys(j for i in unit for j in p.nodes[i].operands if j not in (*unit, *scalars)))
            nodes.append(
                Node("graph", tuple(new[j] for j in outside), dims, graph=_part(p, unit, outside, outputs, loop))
            )
        else:
            (n,) = (p.nodes[i] for i in unit)
            nodes.append(Node(n.op, tuple(new[j] for j in n.operands), dims, n.attrs, n.reduce, n.joined))
        new.update({i: Ref(len(nodes) - 1, k) for k, i in enumerate(outputs)})
    kernel = Graph(Level.KERNEL, tuple(nodes), tuple(new[o.value] for o in p.outputs))
    return MuGraph(p.name, p.axes, p.inputs, kernel, p.outputs, p.dtype)


def _part(
    p: AxisProgram, unit: Sequence[int], outside: Sequence[int], outputs: Sequence[int], loop: Sequence[str]
) -> Graph:
    """The block graph of these operators, which reads the values `outside`."""
    own = [p.nodes[i] for i in unit]
    summed = {a for n in own for a in n.reduce}
    joined = {a for n in own if n.joined for a in (n.joined[0], *n.joined[1])}
    free = set(p.axes).intersection(*(p.nodes[i].axes for i in outputs)) - summed - joined
    used = {a for i in (*outside, *unit) for a in p.nodes[i].axes} | summed | joined
    role = {
        a: Role.PARALLEL if a in free else Role.LOOP if a in summed and a in loop else Role.WHOLE
        for a in p.axes
        if a in used
    }
    nodes: list[Node] = []
    new: dict[int, Ref] = {}
    for k, j in enumerate(outside):
        nodes.append(Node("input", (), (tuple((a,) for a in p.nodes[j].axes),), (("index", k),)))
        new[j] = Ref(k)
    needed = {j for i in unit for j in p.nodes[i].operands if p.nodes[j].op in ("constant", "size")}
    for i in sorted({*needed, *unit}):
        n = p.nodes[i]
        dims = (tuple((a,) for a in n.axes),)
        nodes.append(Node(n.op, tuple(new[j] for j in n.operands), dims, n.attrs, n.reduce, n.joined))
        looped = [a for a in n.reduce if role[a] is Role.LOOP]
        if looped:
            nodes.append(Node("accumulator", (Ref(len(nodes) - 1),), dims, (("mode", "sum"), ("axis", looped[0]))))
        new[i] = Ref(len(nodes) - 1)
    return Graph(Level.BLOCK, tuple(nodes), tuple(new[i] for i in outputs), tuple(role.items()))


def tiles(graph: MuGraph, tile: int | Mapping[str, int], splits: int = 3) -> Schedule:
    """A schedule with this tile for every divided axis (16 for those that a mapping lacks)."""

    def of(a: str) -> int:
        return tile if isinstance(tile, int) else tile.get(a, 16)

    return Schedule(
        tuple(
            KernelSchedule(
                tuple((a, of(a)) for a, r in n.graph.roles if r is not Role.WHOLE),
                tuple((a, splits) for a, r in n.graph.roles if r is Role.SPLIT),
            )
            for n in graph.kernels
            if n.graph is not None
        )
    )


def odd_tiles(graph: MuGraph, rng: Random) -> Schedule:
    """A random schedule: small and odd tiles, which leave something over nearly everywhere, and some packed inputs."""
    tile = {a: rng.choice((1, 3, 5, 8, 16, 30, 50)) for n in graph.kernels if n.graph for a, _ in n.graph.roles}
    split = {a: rng.choice((1, 2, 5)) for a in tile}
    found: list[KernelSchedule] = []
    for n in graph.kernels:
        assert n.graph is not None
        role = n.graph.role
        packed: list[tuple[int, str]] = []
        for k, r in enumerate(n.operands):
            source = graph.kernel.nodes[r.node]
            axes = [a for a in source.axes() if role.get(a) is Role.PARALLEL and tile[a] > 1]
            if source.op == "input" and axes and rng.random() < 0.3:
                packed.append((k, rng.choice(axes)))
        tiles = tuple((a, tile[a]) for a, r in role.items() if r is not Role.WHOLE)
        splits = tuple((a, split[a]) for a, r in role.items() if r is Role.SPLIT)
        found.append(KernelSchedule(tiles, splits, packed=tuple(packed)))
    return Schedule(tuple(found))


def operators(p: Program) -> list[int]:
    """The nodes over axes that compute something."""
    return [i for i, n in enumerate(to_axes(p).nodes) if n.op not in ("input", "constant", "size")]


def random_cut(p: Program, rng: Random, longest: int = 3) -> MuGraph:
    """Up to 5 kernels of operators that follow each other; half of those of one operator are predefined.

    Kernels loop over random axes if they can all do so.
    """
    left = operators(p)
    parts: list[list[int]] = []
    while left:
        count = len(left) if len(parts) == 4 else rng.randint(1, longest)
        parts.append(left[:count])
        left = left[count:]
    loop = [a for a in to_axes(p).reduction_axes() if rng.random() < 0.5]
    parts = [u for u in parts if len(u) > 1 or rng.random() < 0.5]
    looping = cut(p, *parts, loop=loop)
    return looping if prove(to_axes(p), looping) == "proved" else cut(p, *parts)


def in_threads(work: Callable[[int], None], count: int = 4) -> None:
    """`work(seed)` in so many threads at once, a seed each, until all are done; raises what one of them raised."""
    with ThreadPoolExecutor(count) as pool:
        for running in [pool.submit(work, seed) for seed in range(count)]:
            running.result()


def call_from_threads(call: Callable[[int, int], bool]) -> None:
    """`call(seed, n)` for 1 <= n < 30 from four threads at once, a seed each: all have to be true."""
    failures: list[object] = []
    in_threads(lambda seed: failures.extend((seed, n) for n in range(1, 30) if not call(seed, n)))
    assert not failures


def random_inputs(program: Program, sizes: Mapping[str, int], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [drawn(rng, t.bind(sizes), ELEMENTS[t.dtype]) for t in program.input_types]


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Normal numbers, or all numbers of an integer type."""
    if dtype.kind in "iu":
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    return rng.standard_normal(shape).astype(dtype)


def error(got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> float:
    """Largest difference relative to each result's largest magnitude; inf where `got` has a NaN or infinity too many.

    Those of `want` must be in `got`.
    """
    worst = 0.0
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape
        finite = np.isfinite(w)
        np.testing.assert_array_equal(np.where(finite, 0, g), np.where(finite, 0, w))
        if not np.isfinite(g[finite]).all():
            return np.inf
        if finite.any():
            worst = max(worst, float(np.abs(g[finite] - w[finite]).max() / max(np.abs(w[finite]).max(), 1e-30)))
    return worst


def bound(dtype: str) -> float:
    """The largest `error` to accept of a kernel, for inputs of about 1.

    Of 16-bit types two units, one for the result and one for what is between.
    """
    return {"float32": 2e-5, "float64": 1e-12, "float16": 2 * 2.0**-10, "bfloat16": 2 * 2.0**-7}[dtype]


def as_exact(
    program: Program,
    got: Sequence[np.ndarray],
    inputs: Sequence[np.ndarray],
    sizes: Mapping[str, int],
    slack: float = 1.0,
) -> str:
    """What is wrong with results: "" if they are about as near to the exact ones as the program's own with NumPy.

    16 times its error is allowed, 64 units in the last place of the largest element (4 of a 16-bit type), and 8 of 1, for
    what cancels among inputs of about 1; all that times `slack`. Elements that overflow in the program itself are left out.
    """
    rough = run_reference(program, inputs, sizes)
    exact = run_reference(program, inputs, sizes, "longdouble" if program.dtype == "float64" else "float64")
    dtype = DTYPES[program.dtype]
    eps = float(ml_dtypes.finfo(dtype).eps)
    ulps = 4 if dtype.itemsize == 2 else 64
    for k, (g, r, e) in enumerate(zip(got, rough, exact, strict=True)):
        if g.shape != r.shape or g.dtype != dtype:
            return f"result {k} is {g.dtype}{g.shape}, not {dtype}{r.shape}"
        r = r.astype(e.dtype)
        finite = np.isfinite(r) & in_range(e, dtype)
        g, r, e = g.astype(e.dtype)[finite], r[finite], e[finite]
        if np.isnan(g).any():
            return f"result {k} has NaN"
        found, own = np.abs(g - e).max(initial=0), np.abs(r - e).max(initial=0)
        scale = np.abs(e).max(initial=0)
        if found > slack * (16 * own + ulps * eps * scale + 8 * eps):
            return f"result {k} is off by {found:.2g}, NumPy by {own:.2g}, the largest element is {scale:.2g}"
    return ""
