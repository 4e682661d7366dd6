"""Reads what a cubin says of a kernel's parameters."""

from __future__ import annotations

import struct

#: attributes of .nv.info: how a record is laid out, and the record of one parameter
_SIZED, _PARAMETER = 4, 0x17


def parameters(cubin: bytes, kernel: str) -> list[tuple[int, int]]:
    """(offset, bytes) of a kernel's parameters in order."""
    start, size, count, names = struct.unpack_from("<Q10xHHH", cubin, 0x28)[0], *struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, start + i * size) for i in range(count)]
    strings = headers[names][4]

    def name(at: int) -> str:
        return cubin[strings + at : cubin.index(b"\0", strings + at)].decode()

    ((_, _, _, _, at, length),) = (h for h in headers if name(h[0]) == f".nv.info.{kernel}")
    found: dict[int, tuple[int, int]] = {}
    end = at + length
    while at < end:
        form, attribute, value = struct.unpack_from("<BBH", cubin, at)
        at += 4
        if form == _SIZED:
            if attribute == _PARAMETER:
                _, number, offset, bits = struct.unpack_from("<IHHI", cubin, at)
                found[number] = offset, bits >> 18
            at += value
    return [found[i] for i in sorted(found)]
