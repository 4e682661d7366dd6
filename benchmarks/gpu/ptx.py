"""What a kernel's PTX tells: tensor core instructions, and how wide its accesses of global memory are."""

from __future__ import annotations

import re

#: per generation, newest first: the instruction of matrix products that the tensor cores have
_MATRIX = ("tcgen05.mma", "wgmma.mma_async", "mma.sync")
_ACCESS = re.compile(r"\b(ld|st)\.global(?:\.[a-z_:0-9L]+?)*?(?:\.v([248]))?\.[bufs](8|16|32|64)\b")
_COPY = re.compile(r"\bcp\.async\.c[ag]\.shared\.global(?:\.[a-zA-Z_:0-9]+)* \[[^\]]*\], \[[^\]]*\], (0x[0-9a-f]+|\d+)")


def matrix_instruction(ptx: str) -> str | None:
    """The family of the tensor core instructions in a kernel: "tcgen05.mma" (sm_100), "wgmma.mma_async" (sm_90), "mma.sync";
    None where it computes no product on tensor cores.
    """
    return next((name for name in _MATRIX if re.search(rf"^\s*(@\S+ )?{re.escape(name)}\.", ptx, re.M)), None)


def load_bytes(ptx: str) -> list[int]:
    """The bytes that one thread reads with each load from global memory, asynchronous copies to shared memory included."""
    loads = [int(v or 1) * int(bits) // 8 for kind, v, bits in _ACCESS.findall(ptx) if kind == "ld"]
    return loads + [int(size, 0) for size in _COPY.findall(ptx)]


def store_bytes(ptx: str) -> list[int]:
    """The bytes that one thread writes with each store to global memory."""
    return [int(v or 1) * int(bits) // 8 for kind, v, bits in _ACCESS.findall(ptx) if kind == "st"]


def bulk_copies(ptx: str) -> bool:
    """Whether the kernel moves tiles with the bulk tensor copy engine (TMA, sm_90 and newer)."""
    return "cp.async.bulk.tensor" in ptx
