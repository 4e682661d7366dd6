"""What all kernels have in common, compiled before the first of them is there."""

from __future__ import annotations

import threading

from mirage.errors import MirageError
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.compile.shipped import library_source
from mirage.kernels.cpu.emit.matmul import product_parts

#: the libraries of calls, by the names that they are compiled under
LIBRARIES = ("pool", "direct")


def prepare(dtype: str, *, products: bool) -> None:
    """Begin to compile, in the background, what kernels that read tensors of this element type need: the thread pool, direct
    calls and, with `products`, the micro-kernels of matrix products. What was compiled before is in the cache.

    What is wrong with the compiler is for those to tell who need it.
    """
    if products:
        toolchain.start(product_parts([dtype]))
    threading.Thread(target=_compile, daemon=True).start()


def _compile() -> None:
    try:
        for name in LIBRARIES:
            toolchain.compile(library_source(name), name=name)
    except (MirageError, OSError):
        return
