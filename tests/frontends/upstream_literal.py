"""What a candidate of an upstream file computes, executed as it is written: block by block, iteration by iteration.

Independent of the importer: it knows shapes and maps, but no axes. Shapes are those of the arrays, and are written back
into the candidate, so that a changed candidate can be made consistent again (`repaired`).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray
Json = dict[str, Any]


class Malformed(Exception):
    """The candidate cannot be executed as it is written."""


UNARY: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "square": np.square,
    "sqrt": np.sqrt,
    "relu": lambda x: np.maximum(x, 0.0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
}
BINARY: dict[str, Callable[[Array, Array], Array]] = {"add": np.add, "mul": np.multiply, "div": np.divide}


def _down_to(x: Array, dim: int, kept: int) -> Array:
    if x.shape[dim] % kept:
        raise Malformed(f"{x.shape} down to {kept}")
    return x.reshape(*x.shape[:dim], -1, kept, *x.shape[dim + 1 :]).sum(axis=dim)


def apply(name: str, xs: Sequence[Array], dimx: int) -> Array:
    """A predefined operator, without its level's prefix."""
    try:
        if name in UNARY:
            (x,) = xs
            return UNARY[name](x)
        if name in BINARY:
            x, y = xs
            return BINARY[name](x, y)
        if name == "matmul":
            x, y = xs
            return x @ y
        if name == "concat_then_matmul":
            a, b, c, d = xs
            return np.concatenate([a, b], axis=-1) @ np.concatenate([c, d], axis=-2)
        if name.startswith("reduction_"):
            (x,) = xs
            return _down_to(x, int(name[10]), dimx if name.endswith("to_dimx") else 1)
        if name == "rms_norm":
            (x,) = xs
            return np.asarray(x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True)))
    except (ValueError, IndexError) as e:
        raise Malformed(f"{name}: {e}") from None
    raise Malformed(name)


def _part(x: Array, dim: int, count: int, index: int) -> Array:
    if x.shape[dim] % count:
        raise Malformed(f"{x.shape} in {count} parts along {dim}")
    size = x.shape[dim] // count
    return np.take(x, range(index * size, (index + 1) * size), axis=dim)


class _Block:
    def __init__(self, obj: Json, env: dict[int, Array]) -> None:
        self.ops = obj["operators"]
        self.grid = [obj["grid_dim"][k] for k in "xyz"]
        self.loop = obj["forloop_range"]
        self.dimx = obj["reduction_dimx"]
        self.env = env

    def read(self, op: Json, cell: Sequence[int], step: int) -> Array:
        x = self.env[op["dtensor"]["guid"]]
        dims = [op["input_map"][k] for k in "xyz"]
        used = [d for d, n in zip(dims, self.grid, strict=True) if n > 1 and d >= 0]
        if len(set(used)) < len(used):
            raise Malformed("two grid dims on one data dim")
        for d, n, i in zip(dims, self.grid, cell, strict=True):
            if d >= 0 and n > 1:
                x = _part(x, d, n, i)
        return x if op["forloop_dim"] < 0 else _part(x, op["forloop_dim"], self.loop, step)

    def run(self, cell: Sequence[int]) -> list[tuple[Json, Array]]:
        """The stored tiles of one block."""
        after: dict[int, Array] = {}
        for step in range(self.loop):
            inside: dict[int, Array] = {}
            for op in self.ops:
                name = op["op_type"].removeprefix("tb_").removesuffix("_op")
                guids = [t["guid"] for t in op["input_tensors"]]
                if name == "input":
                    inside[op["output_tensors"][0]["guid"]] = self.read(op, cell, step)
                elif "accum_" in name and all(g in inside for g in guids):
                    mode, out = name.partition("accum_")[2], op["output_tensors"][0]["guid"]
                    x = np.square(inside[guids[0]]) if mode == "red_ld_rms" else inside[guids[0]]
                    if mode != "nored":
                        x = _down_to(x, x.ndim - 1, self.dimx if mode == "redtox_ld_sum" else 1)
                    after[out] = after[out] + x if out in after else x
                elif name != "output" and all(g in inside for g in guids):
                    inside[op["output_tensors"][0]["guid"]] = apply(name, [inside[g] for g in guids], self.dimx)
        stored: list[tuple[Json, Array]] = []
        for op in self.ops:
            name = op["op_type"].removeprefix("tb_").removesuffix("_op")
            guids = [t["guid"] for t in op["input_tensors"]]
            out = op["output_tensors"][0]["guid"] if op["output_tensors"] else -1
            if name.endswith(("red_ld_rms", "red_ld_mean")) and out in after:
                mean = after[out] / (inside[guids[0]].shape[-1] * self.loop)
                after[out] = np.sqrt(mean) if name.endswith("rms") else mean
            elif name == "output":
                if guids[0] not in after:
                    raise Malformed("a tensor from inside the loop is stored")
                stored.append((op, after[guids[0]]))
            elif out not in inside and out not in after:
                if not all(g in after for g in guids):
                    raise Malformed(f"{name} of tensors from both sides of the loop")
                after[out] = apply(name, [after[g] for g in guids], self.dimx)
        for op in self.ops:
            for t in op["output_tensors"]:
                _note(t, (after if t["guid"] in after else inside)[t["guid"]])
                t["after_accum"] = t["guid"] in after
        return stored


def _note(t: Json, x: Array) -> None:
    t["num_dims"] = x.ndim
    t["dim"] = [*x.shape, *[0] * (4 - x.ndim)]


def _customized(kernel: Json, env: dict[int, Array]) -> None:
    block = _Block(kernel["bgraph"], env)
    results: dict[int, Array] = {}
    for cell in itertools.product(*map(range, block.grid)):
        for op, tile in block.run(cell):
            where = [slice(None)] * tile.ndim
            shape = list(tile.shape)
            mapped: set[int] = set()
            for d, n, i in zip((op["output_map"][k] for k in "xyz"), block.grid, cell, strict=True):
                if n > 1:
                    if d < 0 or d >= tile.ndim or d in mapped:
                        raise Malformed(f"output map {op['output_map']} of a tile {tile.shape}")
                    mapped.add(d)
                    where[d] = slice(i * shape[d], (i + 1) * shape[d])
                    shape[d] *= n
            guid = op["dtensor"]["guid"]
            out = results.setdefault(guid, np.zeros(shape))
            out[tuple(where)] = tile
    for op in kernel["bgraph"]["operators"]:
        if op["op_type"] == "tb_output_op":
            _note(op["dtensor"], results[op["dtensor"]["guid"]])
    env.update(results)


def run(candidate: list[Json], arrays: Sequence[Array]) -> list[Array]:
    """The results of a candidate for its inputs, in order; its shapes are set to those that occur."""
    env: dict[int, Array] = {}
    given = iter(arrays)
    results: list[Array] = []
    for op in candidate:
        name = op["op_type"].removeprefix("kn_").removesuffix("_op")
        guids = [t["guid"] for t in op["input_tensors"]]
        if name == "input":
            env[op["output_tensors"][0]["guid"]] = next(given)
        elif name == "output":
            results.append(env[guids[0]])
        elif name == "customized":
            _customized(op, env)
        else:
            env[op["output_tensors"][0]["guid"]] = apply(name, [env[g] for g in guids], 1)
        for t in op["output_tensors"]:
            _note(t, env[t["guid"]])
    return results


def repaired(candidate: list[Json], arrays: Sequence[Array]) -> tuple[list[Json], list[Array]]:
    """The candidate with the shapes and loop sides that it has when it is executed, and its results.

    Raises Malformed where it cannot be executed.
    """
    found = copy.deepcopy(candidate)
    with np.errstate(all="ignore"):
        results = run(found, arrays)
    tensors = {t["guid"]: t for t in _made(found)}
    for t in _used(found):
        if t["guid"] not in tensors:
            raise Malformed(f"tensor {t['guid']}")
        for key in ("dim", "num_dims", "after_accum"):
            if key in tensors[t["guid"]]:
                t[key] = tensors[t["guid"]][key]
    return found, results


def _every(candidate: list[Json]) -> list[Json]:
    return [o for k in candidate for o in (k, *k.get("bgraph", {}).get("operators", ()))]


def _made(candidate: list[Json]) -> list[Json]:
    return [t for o in _every(candidate) for t in o["output_tensors"]]


def _used(candidate: list[Json]) -> list[Json]:
    found = [t for o in _every(candidate) for t in o["input_tensors"]]
    return found + [o["dtensor"] for o in _every(candidate) if o["op_type"] == "tb_input_op"]
