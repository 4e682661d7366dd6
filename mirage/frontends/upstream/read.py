"""Reads the candidates of an upstream file as they are written: nothing is interpreted yet.

A file is a JSON list of candidates, a candidate a list of kernel operators in topological order. Tensors are named by
`guid`; the first `num_dims` entries of `dim` are its shape. Element types, layouts, strides, block sizes and memory
offsets are left out: a program and a schedule have their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from mirage.errors import FormatError

#: bounds on what is read, far above any candidate of a search
MAX_CANDIDATES = 10_000
MAX_OPERATORS = 256
MAX_DIMS = 8
MAX_SIZE = 1 << 40

_JSON_NAMES: dict[type, str] = {int: "integer", str: "string", list: "array", dict: "object", bool: "boolean"}


@dataclass(frozen=True)
class Tensor:
    """A tensor: its number in the file, its shape, and on which side of the loop it is, where the file says so."""

    guid: int
    shape: tuple[int, ...]
    after: bool | None


@dataclass(frozen=True)
class BlockOperator:
    """One operator of a block graph; `where` names it in errors.

    `tensor`, `map` (data dim of grid dims x, y, z, or -1) and `loop_dim` are those of an input or output.
    """

    op: str
    where: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    tensor: Tensor | None = None
    map: tuple[int, ...] = ()
    loop_dim: int = -1


@dataclass(frozen=True)
class Block:
    """The graph of a customized kernel: its grid, the iterations of its loop, its operators."""

    grid: tuple[int, int, int]
    loop: int
    reduction_dimx: int | None
    operators: tuple[BlockOperator, ...]


@dataclass(frozen=True)
class KernelOperator:
    """One kernel; `block` is the graph of a customized one."""

    op: str
    where: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    block: Block | None


@dataclass(frozen=True)
class Candidate:
    """One graph of a file, by its place in the list from 0."""

    index: int
    where: str
    operators: tuple[KernelOperator, ...]


def raw_candidates(obj: Any, path: str) -> list[Any]:
    """The candidates of a file's value, unread; raises FormatError where it is not a list of them."""
    found: list[Any] = _checked(obj, list, f"{path}: the file")
    if not found or len(found) > MAX_CANDIDATES:
        raise FormatError(f"{path}: {len(found)} candidates; from 1 to {MAX_CANDIDATES} are read")
    return found


def read_candidate(obj: Any, index: int, path: str) -> Candidate:
    """One candidate of a file; raises FormatError naming the candidate, the operator and the field."""
    where = f"{path}: candidate {index}"
    return Candidate(
        index, where, tuple(_kernel(o, f"{where}, operator {k}") for k, o in enumerate(_operators(obj, where)))
    )


def _operators(obj: Any, where: str) -> list[Any]:
    found: list[Any] = _checked(obj, list, where)
    if not 0 < len(found) <= MAX_OPERATORS:
        raise FormatError(f"{where}: {len(found)} operators; from 1 to {MAX_OPERATORS} are read")
    return found


def _kernel(obj: Any, where: str) -> KernelOperator:
    op = _field(obj, "op_type", str, where)
    where = f"{where} ({op})"
    block = _block(_field(obj, "bgraph", dict, where), where) if op == "kn_customized_op" else None
    return KernelOperator(op, where, *_tensors(obj, where), block)


def _block(obj: Any, where: str) -> Block:
    grid = _field(obj, "grid_dim", dict, where)
    x, y, z = (_count(_field(grid, k, int, f"{where}, grid_dim"), f"{where}, grid_dim.{k}") for k in "xyz")
    loop = _count(_field(obj, "forloop_range", int, where), f"{where}, forloop_range")
    dimx = (
        _count(_field(obj, "reduction_dimx", int, where), f"{where}, reduction_dimx")
        if "reduction_dimx" in obj
        else None
    )
    raw = _operators(_field(obj, "operators", list, where), where)
    return Block((x, y, z), loop, dimx, tuple(_block_operator(o, f"{where}, operator {k}") for k, o in enumerate(raw)))


def _block_operator(obj: Any, where: str) -> BlockOperator:
    op = _field(obj, "op_type", str, where)
    where = f"{where} ({op})"
    inputs, outputs = _tensors(obj, where)
    if op not in ("tb_input_op", "tb_output_op"):
        return BlockOperator(op, where, inputs, outputs)
    tensor = _tensor(_field(obj, "dtensor", dict, where), f"{where}, dtensor")
    if op == "tb_output_op":
        return BlockOperator(op, where, inputs, outputs, tensor, _map(obj, "output_map", len(tensor.shape), where))
    loop_dim = _field(obj, "forloop_dim", int, where)
    if not -1 <= loop_dim < len(tensor.shape):
        raise FormatError(f"{where}, forloop_dim: {loop_dim} is no dim of {list(tensor.shape)}; use -1 for none")
    return BlockOperator(op, where, inputs, outputs, tensor, _map(obj, "input_map", len(tensor.shape), where), loop_dim)


def _map(obj: Any, name: str, rank: int, where: str) -> tuple[int, ...]:
    found = _field(obj, name, dict, where)
    dims = tuple(_field(found, k, int, f"{where}, {name}") for k in "xyz")
    for k, d in zip("xyz", dims, strict=True):
        if not -1 <= d < rank:
            raise FormatError(f"{where}, {name}.{k}: {d} is no dim of a tensor of rank {rank}; use -1 for none")
    return dims


def _tensors(obj: Any, where: str) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    names = ("input_tensors", "output_tensors")
    found = [
        tuple(_tensor(t, f"{where}, {name}[{k}]") for k, t in enumerate(_field(obj, name, list, where)))
        for name in names
    ]
    return found[0], found[1]


def _tensor(obj: Any, where: str) -> Tensor:
    guid, rank, dim = (_field(obj, k, t, where) for k, t in (("guid", int), ("num_dims", int), ("dim", list)))
    if not 0 < rank <= min(MAX_DIMS, len(dim)):
        raise FormatError(f"{where}, num_dims: {rank}, with {len(dim)} entries in dim; write 1 to {MAX_DIMS} dims")
    shape = tuple(_count(n, f"{where}, dim[{k}]") for k, n in enumerate(dim[:rank]))
    return Tensor(guid, shape, _field(obj, "after_accum", bool, where) if "after_accum" in obj else None)


def _count(value: Any, where: str) -> int:
    if not 1 <= _checked(value, int, where) <= MAX_SIZE:
        raise FormatError(f"{where}: {value} is not a size; use 1 or more")
    return int(value)


def _field(obj: Any, name: str, kind: type, where: str) -> Any:
    _checked(obj, dict, where)
    if name not in obj:
        raise FormatError(f"{where}, {name}: is missing; write the field")
    return _checked(obj[name], kind, f"{where}, {name}")


def _checked(value: Any, kind: type, where: str) -> Any:
    """The value, of exactly that type (a bool is no int)."""
    if type(value) is not kind:
        _wrong(where, kind, value)
    return value


def _wrong(where: str, kind: type, value: Any) -> NoReturn:
    text = repr(value)
    raise FormatError(
        f"{where}: expected a JSON {_JSON_NAMES[kind]}, found {text if len(text) <= 80 else text[:77] + '...'}"
    )
