"""Candidates of an upstream file changed on purpose, one small change at a time."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

Json = dict[str, Any]

_UNARY = ("exp", "square", "sqrt", "relu", "sigmoid", "silu")
_BINARY = ("add", "mul", "div")
_ACCUMULATORS = ("nored", "red_ld_sum", "red_ld_mean", "red_ld_rms", "redtox_ld_sum")


def _kernels(candidate: list[Json]) -> list[Json]:
    return [k for k in candidate if "bgraph" in k]


def _all(candidate: list[Json]) -> list[Json]:
    return [o for k in _kernels(candidate) for o in k["bgraph"]["operators"]]


def _with(candidate: list[Json], *words: str) -> list[Json]:
    return [o for o in _all(candidate) if any(w in o["op_type"] for w in words)]


def _operator(c: list[Json], rng: Random) -> bool:
    for family in (_UNARY, _BINARY):
        found = [o for o in _all(c) if o["op_type"][3:-3] in family]
        if found and (family is _BINARY or rng.random() < 0.7):
            o = rng.choice(found)
            o["op_type"] = f"tb_{rng.choice([f for f in family if f != o['op_type'][3:-3]])}_op"
            return True
    return False


def _accumulator(c: list[Json], rng: Random) -> bool:
    o = rng.choice(_with(c, "accum_"))
    mode = o["op_type"].partition("accum_")[2][:-3]
    o["op_type"] = f"tb_accum_{rng.choice([a for a in _ACCUMULATORS if a != mode])}_op"
    return True


def _dropped(c: list[Json], rng: Random, *words: str) -> bool:
    """An operator left out: what uses it uses its first input."""
    for k in rng.sample(_kernels(c), len(_kernels(c))):
        ops = k["bgraph"]["operators"]
        found = [o for o in ops if any(w in o["op_type"] for w in words)]
        if found:
            o = rng.choice(found)
            ops.remove(o)
            for user in ops:
                user["input_tensors"] = [
                    copy.deepcopy(o["input_tensors"][0]) if t["guid"] == o["output_tensors"][0]["guid"] else t
                    for t in user["input_tensors"]
                ]
            return True
    return False


def _dropped_accumulator(c: list[Json], rng: Random) -> bool:
    return _dropped(c, rng, "accum_")


def _dropped_operator(c: list[Json], rng: Random) -> bool:
    return _dropped(c, rng, *(f"tb_{f}_" for f in (*_UNARY, *_BINARY)))


def _entry(c: list[Json], rng: Random, field: str) -> bool:
    o = rng.choice([o for o in _all(c) if field in o])
    letter = rng.choice("xyz")
    rank = o["dtensor"]["num_dims"]
    o[field][letter] = rng.choice([d for d in range(-1, rank) if d != o[field][letter]])
    return True


def _input_map(c: list[Json], rng: Random) -> bool:
    return _entry(c, rng, "input_map")


def _output_map(c: list[Json], rng: Random) -> bool:
    return _entry(c, rng, "output_map")


def _exchanged_grid(c: list[Json], rng: Random) -> bool:
    """Two grid dims exchanged in one map: blocks read, or write, what is another's."""
    o = rng.choice([o for o in _all(c) if "dtensor" in o])
    m = o["input_map"] if "input_map" in o else o["output_map"]
    a, b = rng.sample("xyz", 2)
    m[a], m[b] = m[b], m[a]
    return m[a] != m[b]


def _loop_dim(c: list[Json], rng: Random) -> bool:
    o = rng.choice(_with(c, "tb_input_"))
    o["forloop_dim"] = rng.choice([d for d in range(-1, o["dtensor"]["num_dims"]) if d != o["forloop_dim"]])
    return True


def _loop_range(c: list[Json], rng: Random) -> bool:
    b = rng.choice(_kernels(c))["bgraph"]
    b["forloop_range"] = rng.choice([n for n in (1, 2, 4) if n != b["forloop_range"]])
    return True


def _grid(c: list[Json], rng: Random) -> bool:
    b = rng.choice(_kernels(c))["bgraph"]
    k = rng.choice("xyz")
    b["grid_dim"][k] = rng.choice([n for n in (1, 2, 4) if n != b["grid_dim"][k]])
    return True


def _dimx(c: list[Json], rng: Random) -> bool:
    b = rng.choice(_kernels(c))["bgraph"]
    b["reduction_dimx"] = rng.choice([n for n in (1, 2, 4, 8) if n != b["reduction_dimx"]])
    return True


def _operand(c: list[Json], rng: Random) -> bool:
    ops = rng.choice(_kernels(c))["bgraph"]["operators"]
    users = [o for o in ops if o["input_tensors"]]
    o = rng.choice(users)
    before = [t for p in ops[: ops.index(o)] for t in p["output_tensors"]]
    k = rng.randrange(len(o["input_tensors"]))
    others = [t for t in before if t["guid"] != o["input_tensors"][k]["guid"]]
    if not others:
        return False
    o["input_tensors"][k] = copy.deepcopy(rng.choice(others))
    return True


def _exchanged_operands(c: list[Json], rng: Random) -> bool:
    found = [o for o in _all(c) if len(o["input_tensors"]) == 2 and o["op_type"] in ("tb_div_op", "tb_matmul_op")]
    rng.choice(found)["input_tensors"].reverse()
    return True


def _other_tensor(c: list[Json], rng: Random) -> bool:
    """An input iterator that reads another kernel-level tensor."""
    k = rng.choice(_kernels(c))
    o = rng.choice([o for o in k["bgraph"]["operators"] if o["op_type"] == "tb_input_op"])
    others = [t for t in k["input_tensors"] if t["guid"] != o["dtensor"]["guid"]]
    if not others or any(d >= others[0]["num_dims"] for d in (*o["input_map"].values(), o["forloop_dim"])):
        return False
    o["dtensor"] = copy.deepcopy(others[0])
    return True


def _exchanged_stores(c: list[Json], rng: Random) -> bool:
    for k in _kernels(c):
        stores = [o for o in k["bgraph"]["operators"] if o["op_type"] == "tb_output_op"]
        if len(stores) > 1:
            a, b = (o["input_tensors"] for o in stores[:2])
            stores[0]["input_tensors"], stores[1]["input_tensors"] = b, a
            return True
    return False


CHANGES: dict[str, Callable[[list[Json], Random], bool]] = {
    "operator": _operator,
    "accumulator": _accumulator,
    "dropped accumulator": _dropped_accumulator,
    "dropped operator": _dropped_operator,
    "input map": _input_map,
    "output map": _output_map,
    "exchanged grid dims": _exchanged_grid,
    "loop dim": _loop_dim,
    "loop range": _loop_range,
    "grid": _grid,
    "reduction_dimx": _dimx,
    "operand": _operand,
    "exchanged operands": _exchanged_operands,
    "other tensor": _other_tensor,
    "exchanged stores": _exchanged_stores,
}


def mutants(candidate: list[Json], rng: Random, count: int) -> Iterator[tuple[str, list[Json]]]:
    """Changed copies of a candidate, with the kind of the change (a key of `CHANGES`); kinds take turns."""
    kinds = list(CHANGES)
    for i in range(count):
        changed = json.loads(json.dumps(candidate))  # no object in two places
        kind = kinds[i % len(kinds)]
        if CHANGES[kind](changed, rng) and changed != candidate:
            yield kind, changed
