"""Which version runs at which sizes, as generated C: a decision tree printed as a function of the sizes."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence

from mirage.errors import NoCompilerError
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.emit.writer import Writer
from mirage.kernels.decision import Split, Tree, decide

FUNCTION = "mirage_choose"


def choose_source(name: str, tree: Tree, symbols: Sequence[str]) -> str:
    """C of `int mirage_choose(const long *sizes)`: the version of program `name` at sizes in the order of `symbols`."""
    w = Writer()
    w.comment(f"Which version of {name} runs at these sizes: {', '.join(symbols)}.")
    with w.block(f"int {FUNCTION}(const long *sizes)"):
        if not isinstance(tree, Split):
            w.line("(void)sizes;")
        _print(w, tree, symbols)
    return w.text()


def _print(w: Writer, tree: Tree, symbols: Sequence[str]) -> None:
    if not isinstance(tree, Split):
        w.line(f"return {tree};")
        return
    w.comment(str(tree))
    values = [f"sizes[{symbols.index(d)}]" for d in tree.dims]
    if len(values) == 1:
        condition = f"{values[0]} <= {tree.threshold}L"
    else:
        # a product of two sizes could overflow
        condition = f"{' * '.join(f'(double){v}' for v in values)} <= {tree.threshold}.0"
    with w.block(f"if ({condition})"):
        _print(w, tree.below, symbols)
    _print(w, tree.above, symbols)


def compile_tree(name: str, tree: Tree, symbols: Sequence[str]) -> Callable[[Mapping[str, int]], int]:
    """The tree as a compiled function of sizes (dim symbol -> elements, every one of `symbols`), in well under a microsecond.

    Where there is no C compiler, so that all versions are library calls, the tree is followed in Python. Raises
    CompilerError and UnsafeCacheError as `toolchain.compile` does.
    """
    if not isinstance(tree, Split):
        return lambda _: tree
    try:
        path = toolchain.compile(choose_source(name, tree, symbols), name=f"{name[:40]}_choose")
    except NoCompilerError:
        return lambda sizes: decide(tree, sizes)
    function = getattr(toolchain.load(path), FUNCTION)
    # bytes are made faster than an array of ctypes
    function.argtypes = [ctypes.c_char_p]
    function.restype = ctypes.c_int
    pack = struct.Struct(f"{len(symbols)}l").pack
    in_order = tuple(symbols)

    def choose(sizes: Mapping[str, int]) -> int:
        version: int = function(pack(*[sizes[s] for s in in_order]))
        return version

    return choose
