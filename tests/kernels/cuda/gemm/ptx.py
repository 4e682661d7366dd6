"""Runs the PTX of a kernel on the processor, block by block: what a device would compute, where there is none.

The subset of PTX ISA 8.8 that the products of `mirage.kernels.cuda.gemm` are made of. All threads of a block are one NumPy
array per register; those at the least instruction go first, so that branches meet again. Asynchronous copies take effect when
they are waited for, and no sooner: shared memory holds NaNs in between. Addresses are checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

U64, U32, U16, F32 = np.uint64, np.uint32, np.uint16, np.float32
#: where global memory starts, and the distance of arrays: addresses in between are no one's
_START, _APART = 1 << 32, 1 << 12
_WIDTHS = {"pred": 0, "8": 1, "16": 2, "32": 4, "64": 8}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
    # of floats, true where one is NaN
    "ltu": lambda x, y: ~(x >= y), "leu": lambda x, y: ~(x > y), "gtu": lambda x, y: ~(x <= y),
    "geu": lambda x, y: ~(x < y), "neu": lambda x, y: ~((x < y) | (x > y)),
}  # fmt: skip


@dataclass(frozen=True)
class Instruction:
    """One instruction: its dotted name, its operands as text, and the predicate (name, value) it depends on."""

    name: tuple[str, ...]
    operands: tuple[str, ...]
    guard: tuple[str, bool] | None


@dataclass
class Kernel:
    """The instructions of a kernel, and the types of its parameters in order."""

    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    threads: int = 0


def parse(text: str) -> Kernel:
    """The one kernel of a PTX module."""
    text = re.sub(r"//[^\n]*", "", text)
    kernel = Kernel()
    head, _, body = text[text.index(".entry") :].partition(")")
    for kind, name in re.findall(r"\.param \.(\w+)[^\n]*?(\w+)(?=,|\s*$)", head):
        kernel.params[name] = kind
    before, _, body = body.partition("{")
    kernel.threads = int(np.prod([int(n) for n in re.findall(r"\d+", before[before.index(".reqntid") :])[:3]]))
    for statement in re.split(r";|(?<=:)\n", body):
        # braces of inline blocks, which declare what is unique anyway
        one = re.sub(r"^[\s{}]+", "", statement).strip()
        if one.endswith(":"):
            kernel.labels[one[:-1]] = len(kernel.code)
        elif one and not one.startswith("."):
            kernel.code.append(_instruction(one))
    return kernel


def _instruction(text: str) -> Instruction:
    guard = None
    if text.startswith("@"):
        name, _, text = text[1:].partition(" ")
        guard = name.strip().lstrip("!"), not name.startswith("!")
    name, _, rest = " ".join(text.split()).partition(" ")
    operands, depth, start = [], 0, 0
    for i, c in enumerate(rest + ","):
        depth += (c in "{[") - (c in "}]")
        if c == "," and not depth:
            operands.append(rest[start:i].strip())
            start = i + 1
    return Instruction(tuple(name.split(".")), tuple(o for o in operands if o), guard)


class Memory:
    """Arrays in one space of addresses."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self.arrays = arrays
        self.addresses: list[int] = []
        at = _START
        self._valid: list[tuple[int, int]] = []
        for a in arrays:
            assert a.flags.c_contiguous
            self.addresses.append(at)
            self._valid.append((at, at + a.nbytes))
            at += -(-(a.nbytes + _APART) // _APART) * _APART
        self.bytes = np.full(at - _START, 0xFF, np.uint8)
        for a, (lo, hi) in zip(arrays, self._valid, strict=True):
            self.bytes[lo - _START : hi - _START] = np.frombuffer(a.tobytes(), np.uint8)

    def places(self, addresses: np.ndarray, size: int) -> np.ndarray:
        """The bytes [access, size] of these accesses; raises IndexError for one that is not inside of an array."""
        if np.any(addresses % U64(size)):
            raise IndexError(f"an access of {size} bytes at {hex(int(addresses[0]))} is not aligned")
        inside = np.zeros(len(addresses), bool)
        for lo, hi in self._valid:
            inside |= (addresses >= lo) & (addresses + U64(size) <= hi)
        if not inside.all():
            raise IndexError(f"an access of {size} bytes at {hex(int(addresses[~inside][0]))} is out of all arrays")
        return (addresses.astype(np.int64) - _START)[:, None] + np.arange(size)

    def store(self) -> None:
        """Give the arrays their contents."""
        for a, (lo, hi) in zip(self.arrays, self._valid, strict=True):
            a.view(np.uint8).reshape(-1)[:] = self.bytes[lo - _START : hi - _START]


def run(text: str, grid: Sequence[int], arguments: Sequence[Any], shared: int) -> None:
    """Run a kernel with `arguments` (NumPy arrays, written in place, and scalars) and so many bytes of shared memory."""
    kernel = parse(text)
    memory = Memory([a for a in arguments if isinstance(a, np.ndarray)])
    addresses = iter(memory.addresses)
    values = [next(addresses) if isinstance(a, np.ndarray) else int(a) for a in arguments]
    assert len(values) == len(kernel.params)
    for z in range(grid[2]):
        for y in range(grid[1]):
            for x in range(grid[0]):
                _Block(kernel, memory, dict(zip(kernel.params, values, strict=True)), (x, y, z), grid, shared).run()
    memory.store()


class _Block:
    def __init__(
        self, kernel: Kernel, memory: Memory, params: Mapping[str, int], block: Sequence[int], grid: Sequence[int], shared: int
    ) -> None:
        self.kernel, self.memory, self.params = kernel, memory, params
        self.count = kernel.threads
        self.shared = np.full(shared, 0xFF, np.uint8)
        self.registers: dict[str, np.ndarray] = {}
        self.special = {f"%ctaid.{a}": int(n) for a, n in zip("xyz", block, strict=True)}
        self.special |= {f"%nctaid.{a}": int(n) for a, n in zip("xyz", grid, strict=True)}
        self.pc = np.zeros(self.count, np.int64)
        self.waiting = np.zeros(self.count, bool)
        #: per thread, groups of copies (where to, bytes), the open one last
        self.copies: list[list[list[tuple[int, np.ndarray]]]] = [[[]] for _ in range(self.count)]

    def run(self) -> None:
        """Until all threads have returned."""
        done = len(self.kernel.code)
        while True:
            ready = (self.pc < done) & ~self.waiting
            if not ready.any():
                if not self.waiting.any():
                    return
                assert self.waiting[self.pc < done].all()
                self.waiting[:] = False
                continue
            at = int(self.pc[ready].min())
            active = ready & (self.pc == at)
            one = self.kernel.code[at]
            self.pc[active] = at + 1
            if one.guard is not None:
                name, value = one.guard
                active &= self.registers[name] == value
            if active.any():
                getattr(self, f"_{one.name[0]}")(one, active)

    # operands

    def bits(self, text: str) -> np.ndarray:
        """An operand's bits, of all threads."""
        if text in self.registers:
            return self.registers[text]
        if text == "%tid.x":
            return np.arange(self.count, dtype=U64)
        if text in self.special:
            return np.full(self.count, self.special[text], U64)
        if text.startswith("0f"):
            return np.full(self.count, int(text[2:], 16), U64)
        if text.startswith("__dynamic"):
            return np.zeros(self.count, U64)
        return np.full(self.count, int(text, 0) & (1 << 64) - 1, U64)

    def read(self, text: str, kind: str) -> np.ndarray:
        """An operand as numbers of a type such as "s32"."""
        bits = self.bits(text)
        if kind == "pred":
            return bits
        dtype = np.dtype(_TYPES[kind])
        return bits.astype(f"u{dtype.itemsize}").view(dtype)

    def write(self, text: str, value: np.ndarray, active: np.ndarray) -> None:
        """Set a register of the active threads."""
        if value.dtype != bool:
            value = np.ascontiguousarray(value)
            value = value.view(f"u{value.dtype.itemsize}").astype(U64)
        old = self.registers.get(text)
        if old is None:
            old = np.zeros(self.count, value.dtype)
        self.registers[text] = np.where(active, value, old)

    def address(self, text: str) -> np.ndarray:
        """The addresses of an operand such as [%r1+16]."""
        base, _, offset = text.strip("[]").partition("+")
        return self.bits(base.strip()) + U64(int(offset or 0) & (1 << 64) - 1)

    def parts(self, text: str) -> list[str]:
        return [p.strip() for p in text.strip("{}").split(",")]

    # moves

    def _mov(self, one: Instruction, active: np.ndarray) -> None:
        to, source = one.operands
        if "{" in source:
            parts = self.parts(source)
            width = 8 * _WIDTHS[one.name[1][1:]] // len(parts)
            self.write(to, np.bitwise_or.reduce([self.bits(p) << U64(width * i) for i, p in enumerate(parts)]), active)
        elif "{" in to:
            parts = self.parts(to)
            width = 8 * _WIDTHS[one.name[1][1:]] // len(parts)
            bits = self.bits(source)
            for i, p in enumerate(parts):
                self.write(p, bits >> U64(width * i) & U64((1 << width) - 1), active)
        else:
            self.write(to, self.bits(source), active)

    def _ld(self, one: Instruction, active: np.ndarray) -> None:
        parts = self.parts(one.operands[0])
        size = _WIDTHS[one.name[-1][1:]]
        if one.name[1] == "param":
            mask = (1 << 8 * size) - 1
            self.write(parts[0], np.full(self.count, self.params[one.operands[1].strip("[]")] & mask, U64), active)
            return
        assert "global" in one.name
        where = self.memory.places(self.address(one.operands[1])[active], size * len(parts))
        found = self.memory.bytes[where].reshape(-1).view(f"u{size}").reshape(-1, len(parts))
        for i, p in enumerate(parts):
            value = np.zeros(self.count, U64)
            value[active] = found[:, i]
            self.write(p, value, active)

    def _st(self, one: Instruction, active: np.ndarray) -> None:
        assert "global" in one.name
        parts, size = self.parts(one.operands[1]), _WIDTHS[one.name[-1][1:]]
        where = self.memory.places(self.address(one.operands[0])[active], size * len(parts))
        values = np.stack([self.bits(p)[active].astype(f"u{size}") for p in parts], 1)
        self.memory.bytes[where] = np.ascontiguousarray(values).view(np.uint8).reshape(where.shape)

    def _cvt(self, one: Instruction, active: np.ndarray) -> None:
        kinds = [k for k in one.name if k in _TYPES or k in ("bf16x2", "f16x2")]
        if kinds[0].endswith("x2"):
            dtype = _TYPES[kinds[0][:-2]]
            high, low = (self.read(o, "f32").astype(dtype).view(U16).astype(U64) for o in one.operands[1:])
            self.write(one.operands[0], high << U64(16) | low, active)
            return
        value = self.read(one.operands[1], kinds[1])
        if "sat" in one.name:
            value = np.clip(np.nan_to_num(value), 0, 1)
        for mode, rounded in (("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)):
            value = rounded(value) if mode in one.name else value
        with np.errstate(all="ignore"):
            self.write(one.operands[0], value.astype(_TYPES[kinds[0]]), active)

    def _selp(self, one: Instruction, active: np.ndarray) -> None:
        to, x, y, p = one.operands
        self.write(to, np.where(self.registers[p], self.bits(x), self.bits(y)), active)

    def _shfl(self, one: Instruction, active: np.ndarray) -> None:
        assert one.name[2] == "idx" and active.all()
        to, x, lane, *_ = one.operands
        source = np.arange(self.count) // 32 * 32 + self.bits(lane).astype(np.int64)
        self.write(to.split("|")[0], self.bits(x)[source], active)

    # arithmetic

    def _numbers(self, one: Instruction, active: np.ndarray, fn: Callable[..., np.ndarray]) -> None:
        kind = one.name[-1]
        with np.errstate(all="ignore"):
            value = fn(*(self.read(o, kind) for o in one.operands[1:]))
        self.write(one.operands[0], value.astype(_TYPES[kind]) if kind != "pred" else value, active)

    def _add(self, one: Instruction, active: np.ndarray) -> None:
        self._numbers(one, active, np.add)

    def _sub(self, one: Instruction, active: np.ndarray) -> None:
        self._numbers(one, active, np.subtract)

    def _mul(self, one: Instruction, active: np.ndarray) -> None:
        if "wide" in one.name:
            kind = one.name[-1]
            wide = kind[0] + str(2 * int(kind[1:]))
            x, y = (self.read(o, kind).astype(_TYPES[wide]) for o in one.operands[1:])
            self.write(one.operands[0], x * y, active)
        else:
            self._numbers(one, active, np.multiply)

    def _mad(self, one: Instruction, active: np.ndarray) -> None:
        assert "lo" in one.name
        self._numbers(one, active, lambda x, y, z: x * y + z)

    def _fma(self, one: Instruction, active: np.ndarray) -> None:
        def fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
            exact = x.astype(np.float64) * y + z
            near = exact.astype(F32)
            return np.where(near > exact, np.nextafter(near, F32(-np.inf)), near) if "rm" in one.name else near

        self._numbers(one, active, fma)

    def _div(self, one: Instruction, active: np.ndarray) -> None:
        if one.name[-1] == "f32":
            self._numbers(one, active, np.divide)
        else:
            # towards zero
            self._numbers(one, active, lambda x, y: np.trunc(x.astype(np.float64) / y))

    def _rem(self, one: Instruction, active: np.ndarray) -> None:
        self._numbers(one, active, np.fmod)

    def _rcp(self, one: Instruction, active: np.ndarray) -> None:
        self._numbers(one, active, lambda x: F32(1) / x)

    def _sqrt(self, one: Instruction, active: np.ndarray) -> None:
        self._numbers(one, active, np.sqrt)

    def _ex2(self, one: Instruction, active: np.ndarray) -> None:
        self._numbers(one, active, np.exp2)

    def _neg(self, one: Instruction, active: np.ndarray) -> None:
        self._numbers(one, active, np.negative)

    def _abs(self, one: Instruction, active: np.ndarray) -> None:
        self._numbers(one, active, np.abs)

    def _copysign(self, one: Instruction, active: np.ndarray) -> None:
        self._numbers(one, active, lambda sign, x: np.copysign(x, sign))

    def _min(self, one: Instruction, active: np.ndarray) -> None:
        self._numbers(one, active, np.fmin if one.name[-1] == "f32" else np.minimum)

    def _max(self, one: Instruction, active: np.ndarray) -> None:
        self._numbers(one, active, np.fmax if one.name[-1] == "f32" else np.maximum)

    def _and(self, one: Instruction, active: np.ndarray) -> None:
        self._logic(one, active, np.bitwise_and)

    def _or(self, one: Instruction, active: np.ndarray) -> None:
        self._logic(one, active, np.bitwise_or)

    def _xor(self, one: Instruction, active: np.ndarray) -> None:
        self._logic(one, active, np.bitwise_xor)

    def _not(self, one: Instruction, active: np.ndarray) -> None:
        self._logic(one, active, np.invert)

    def _logic(self, one: Instruction, active: np.ndarray, fn: Callable[..., np.ndarray]) -> None:
        value = fn(*(self.bits(o) for o in one.operands[1:]))
        if one.name[-1] != "pred":
            value = value & U64((1 << 8 * _WIDTHS[one.name[-1][1:]]) - 1)
        self.write(one.operands[0], value, active)

    def _shl(self, one: Instruction, active: np.ndarray) -> None:
        kind = "u" + one.name[-1][1:]
        by = self.bits(one.operands[2]).astype(_TYPES[kind])
        self.write(one.operands[0], self.read(one.operands[1], kind) << by, active)

    def _shr(self, one: Instruction, active: np.ndarray) -> None:
        kind = one.name[-1].replace("b", "u")
        by = self.bits(one.operands[2]).astype(_TYPES[kind])
        self.write(one.operands[0], self.read(one.operands[1], kind) >> by, active)

    def _setp(self, one: Instruction, active: np.ndarray) -> None:
        kind = one.name[-1].replace("b", "u")
        to, x, y = one.operands
        self.write(to, _COMPARE[one.name[1]](self.read(x, kind), self.read(y, kind)), active)

    # control

    def _bra(self, one: Instruction, active: np.ndarray) -> None:
        self.pc[active] = self.kernel.labels[one.operands[0]]

    def _ret(self, one: Instruction, active: np.ndarray) -> None:
        self.pc[active] = len(self.kernel.code)

    def _bar(self, one: Instruction, active: np.ndarray) -> None:
        self.waiting[active] = True

    def _fence(self, one: Instruction, active: np.ndarray) -> None:
        """Orders what is in order here anyway."""

    # shared memory

    def _cp(self, one: Instruction, active: np.ndarray) -> None:
        if one.name[2] == "commit_group":
            for t in np.flatnonzero(active):
                self.copies[t].append([])
            return
        if one.name[2] in ("wait_group", "wait_all"):
            kept = int(one.operands[0]) if one.operands else 0
            for t in np.flatnonzero(active):
                groups = self.copies[t]
                while len(groups) - 1 > kept:
                    for at, data in groups.pop(0):
                        self.shared[at : at + len(data)] = data
            return
        to, source = self.address(one.operands[0]), self.address(one.operands[1])
        size = int(one.operands[2])
        taken = self.bits(one.operands[3]) if len(one.operands) > 3 else np.full(self.count, size, U64)
        assert np.isin(taken[active], (0, size)).all() and not np.any(to[active] % U64(size))
        for t in np.flatnonzero(active):
            at = int(to[t])
            assert at + size <= len(self.shared)
            data = np.zeros(size, np.uint8)
            if taken[t]:
                data = self.memory.bytes[self.memory.places(source[t : t + 1], size)[0]].copy()
            self.shared[at : at + size] = 0xFF
            self.copies[t][-1].append((at, data))

    def _ldmatrix(self, one: Instruction, active: np.ndarray) -> None:
        assert active.all()
        registers = self.parts(one.operands[0])
        addresses = self.address(one.operands[1]).astype(np.int64).reshape(-1, 32)
        lanes = np.arange(32)
        for j, name in enumerate(registers):
            rows = addresses[:, 8 * j : 8 * j + 8]
            assert not np.any(rows % 16)
            matrices = self.shared[rows[..., None] + np.arange(16)].view(U16)
            first, second = 2 * (lanes % 4), 2 * (lanes % 4) + 1
            if "trans" in one.name:
                low, high = matrices[:, first, lanes // 4], matrices[:, second, lanes // 4]
            else:
                low, high = matrices[:, lanes // 4, first], matrices[:, lanes // 4, second]
            self.write(name, (low.astype(U64) | high.astype(U64) << U64(16)).reshape(-1), active)

    # products

    def _halves(self, name: str, dtype: Any) -> np.ndarray:
        """A register's two numbers per lane: [warp, lane, 2]."""
        return self.bits(name).astype(U32).view(U16).view(dtype).astype(F32).reshape(-1, 32, 2)

    def _mma(self, one: Instruction, active: np.ndarray) -> None:
        assert active.all() and "m16n8k16" in one.name
        dtype = _TYPES[one.name[-2]]
        d, a, b, c = (self.parts(o) for o in one.operands)
        lanes = np.arange(32)
        g, t = lanes // 4, 2 * (lanes % 4)
        warps = self.count // 32
        x, y, z = (np.empty((warps, *s), F32) for s in ((16, 16), (16, 8), (16, 8)))
        for i in range(4):
            halves = self._halves(a[i], dtype)
            for h in (0, 1):
                x[:, g + 8 * (i % 2), t + 8 * (i // 2) + h] = halves[..., h]
        for i in range(2):
            halves = self._halves(b[i], dtype)
            for h in (0, 1):
                y[:, t + 8 * i + h, g] = halves[..., h]
        for i in range(4):
            z[:, g + 8 * (i // 2), t + i % 2] = self.read(c[i], "f32").reshape(-1, 32)
        found = (x.astype(np.float64) @ y + z).astype(F32)
        for i in range(4):
            self.write(d[i], found[:, g + 8 * (i // 2), t + i % 2].reshape(-1), active)


_TYPES: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": F32, "f64": np.float64,
    "s16": np.int16, "s32": np.int32, "s64": np.int64, "u16": U16, "u32": U32, "u64": U64,
    "b16": U16, "b32": U32, "b64": U64,
}  # fmt: skip
