"""Programs whose memory is planned compute what they do with a buffer for each tensor: random graphs, at many sizes."""

from __future__ import annotations

import random

import numpy as np
import pytest

import mirage as mi
from mirage.compiler.memory.buffers import Plan
from mirage.compiler.memory.liveness import Liveness, Step, analyze
from mirage.compiler.memory.plan import plan
from mirage.ir.dims import Dim, to_dim
from mirage.ir.types import TensorType, tensor
from mirage.runtime import program as vm
from tests.compiler.memory.sizes import Signs
from tests.runtime.machines import ADD, DOUBLE, FILL, function, machine

SHAPES: list[tuple[str, ...]] = [("n",), ("m",), ("n", "m"), ("2*n",), ("n", "n"), ("7",)]


class Graph:
    """Tensors in order, each from earlier ones of its shape, or from nothing but a number."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.shapes: dict[str, tuple[Dim, ...]] = {"x": (to_dim("n"),), "y": (to_dim("m"),)}
        self.nodes: list[tuple[str, int, list[str]]] = []
        for k in range(rng.randint(3, 30)):
            shape = tuple(map(to_dim, rng.choice(SHAPES)))
            same = [name for name, s in self.shapes.items() if s == shape]
            kernel = rng.choice((ADD, DOUBLE, DOUBLE, FILL)) if same else FILL
            self.nodes.append((f"t{k}", kernel, [rng.choice(same) for _ in range((2, 1, 0)[kernel])]))
            self.shapes[f"t{k}"] = shape
        self.results = rng.sample([name for name, _, _ in self.nodes], rng.randint(1, 3))

    def reference(self, values: dict[str, np.ndarray], sizes: dict[str, int]) -> list[np.ndarray]:
        for k, (name, kernel, args) in enumerate(self.nodes):
            given = [values[a] for a in args]
            shape = TensorType(self.shapes[name]).bind(sizes)
            values[name] = np.full(shape, k, np.float32) if kernel == FILL else given[0] + given[-1]
        return [values[r] for r in self.results]

    def planned(self, bounds: dict[str, int]) -> tuple[vm.VMFunction, Plan]:
        """The function, with tensors where the plan says."""
        sizes = {name: to_dim(4) * np.prod(shape) for name, shape in self.shapes.items()}
        sizes |= {f"{name}.w": sizes[name] for name, kernel, _ in self.nodes if kernel == FILL}
        steps = [
            Step((name,), tuple(args), workspace=(f"{name}.w",) * (kernel == FILL)) for name, kernel, args in self.nodes
        ]
        live = analyze(steps, self.results)
        found = plan(live.buffers({name: to_dim(d) for name, d in sizes.items()}), Signs(bounds))
        return self._function(found, live), found

    def _function(self, found: Plan, live: Liveness) -> vm.VMFunction:
        code: list[vm.Instruction] = [vm.AllocStorage(k, size) for k, size in enumerate(found.storages)]
        storage = len(code)
        at = {"x": 0, "y": 1}

        def make(name: str, shape: tuple[Dim, ...]) -> int:
            nonlocal storage
            where, at[name] = None, len(at)
            if name in found.places:
                place = found.places[name]
                where = place.storage
                if where is None:
                    where, storage = storage, storage + 1
                    code.append(vm.AllocStorage(where, place.bytes, place.offset))
            code.append(vm.MakeTensor(at[name], where, 0, shape, "float32"))
            return at[name]

        for k, (name, kernel, args) in enumerate(self.nodes):
            out = make(name, self.shapes[name])
            workspace = (make(f"{name}.w", self.shapes[name]),) if kernel == FILL else ()
            code.append(vm.CallKernel(kernel, tuple(at[a] for a in args), (out,), (to_dim(k),), workspace))
            code.append(vm.Free(tuple(at[n] for n, last in live.last_use.items() if last == k and n in at)))
        code += [vm.MakeTuple(len(at), tuple(at[r] for r in self.results)), vm.Return(len(at))]
        return function({"x": tensor("n"), "y": tensor("m")}, *code, arena=found.arena)


@pytest.mark.parametrize("bounds", [{}, {"n": 20}, {"n": 20, "m": 9}])
def test_planned_memory_changes_no_result(bounds: dict[str, int]) -> None:
    for seed in range(40):
        graph, rng = Graph(seed), np.random.default_rng(seed)
        made, found = graph.planned(bounds)
        run = machine(made)
        for _ in range(6):
            sizes = {"n": int(rng.integers(0, 21)), "m": int(rng.integers(0, 10))}
            x, y = (rng.integers(0, 9, sizes[s]).astype(np.float32) for s in ("n", "m"))
            want = graph.reference({"x": x, "y": y}, sizes)
            for a, b in zip(run(x, y), want, strict=True):
                assert np.array_equal(a, b)
            if "m" in bounds:
                assert run.idle_bytes == found.arena


def test_a_plan_of_tensors_without_elements_needs_no_arena() -> None:
    def empty(x):  # type: ignore[no-untyped-def]
        return mi.sort(mi.sort(x[0:0]) + 1.0)

    run = mi.compile(empty, {"x": mi.tensor(3, 4)}, without=("superoptimize",), cache=False)
    assert run.memory_plan["empty"].arena == 0
    assert run(np.ones((3, 4), np.float32)).shape == (0, 4)
