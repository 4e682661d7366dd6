"""Kernels of loop programs from text: none computes anything else than the operators that it stands for.

The loops of a group of operators follow from the operators (`mirage.compiler.codegen`), which the text has, too: they are
made again, and compared. That is a proof for all sizes, of every index, range and function, and takes milliseconds. The
reads of loops that were written by hand, which stand for themselves, are shown to be within their tensors.
"""

from __future__ import annotations

from mirage.compiler.codegen import from_operators
from mirage.compiler.loop_reads import with_reads_within
from mirage.errors import MirageError, VerificationError
from mirage.ir.loops.parse import parse_loops
from mirage.ir.loops.program import LoopProgram
from mirage.kernels.cpu.loops.kernel import LoopKernel
from mirage.kernels.loop_text import parts_from_text
from mirage.kernels.target import get_target
from mirage.runtime.executable import Kernel


def loops_from_text(text: str) -> LoopKernel:
    """The kernel that `LoopKernel.to_text` wrote, compiled for this machine.

    Raises ParseError and LoopError for any other text, and for reads outside of a tensor; VerificationError for loops that
    are not those of their operators; and what `LoopKernel` raises.
    """
    return LoopKernel(verified(parse_loops(text)))


def target_loops_from_text(text: str) -> Kernel:
    """The kernel of the loop program and the target that `parts_to_text` wrote, compiled where that is not cached.

    Raises FormatError for any other text, UnknownTarget, and as `loops_from_text` does.
    """
    program, target, hints = parts_from_text(text)
    kernel: Kernel = get_target(target).loops(verified(program), hints)
    return kernel


def verified(program: LoopProgram) -> LoopProgram:
    """The program, where its reads are within their tensors, and it computes what its operators do.

    It may need more of the sizes of a call than before. Raises LoopError, or VerificationError, where that is not so.
    """
    if not program.operators:
        return with_reads_within(program)
    try:
        again = from_operators(program)
    except MirageError as e:
        raise VerificationError(f"kernel {program.name}: its operators are none: {e}; compile the program again") from None
    if again != program:
        raise VerificationError(
            f"kernel {program.name}: {_difference(program, again)}; it is not the kernel of its operators: "
            "compile the program again"
        )
    return program


def _difference(program: LoopProgram, again: LoopProgram | None) -> str:
    """Where a program differs from the one that its operators make, in words."""
    if again is None or len(again.stages) != len(program.stages):
        return "it has other stages"
    for (name, stage), (_, wanted) in zip(program.stages, again.stages, strict=True):
        if stage != wanted:
            return f"stage {name} computes something else"
    return "its inputs, outputs or needs are others"
