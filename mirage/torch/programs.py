"""Programs without the model that they were made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mirage.drawing.show import Displayed
from mirage.errors import GuardError, InputError
from mirage.remember import remember
from mirage.torch.arguments import Key, dtype_name, split
from mirage.torch.caches import grows
from mirage.torch.guards import Shape
from mirage.torch.program import KNOWN, Program
from mirage.torch.weights import requires_grad


class CompiledPrograms(Displayed, drawn_by="mirage.torch.draw"):
    """Programs that were made ahead of calls, of a file or an exported program: called as the model is, for the kinds of
    arguments and the sizes that they were made for.
    """

    def __init__(self, name: str, programs: Sequence[tuple[Key, Program]]) -> None:
        self.name = name
        self._programs: dict[Key, list[Program]] = {}
        for key, program in programs:
            self._programs.setdefault(key, []).append(program)
        self._known: dict[Key, dict[tuple[Shape, ...], Program]] = {key: {} for key in self._programs}
        self._grows = any(map(grows, self._programs))

    @property
    def programs(self) -> list[Program]:
        """All programs."""
        return [p for found in self._programs.values() for p in found]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model gave for such arguments; no gradients.

        Raises InputError for arguments of a kind that it was not compiled for, or that need gradients, GuardError for sizes that
        no program takes, naming those that are taken.
        """
        given = split(args, kwargs, self._grows)
        if torch.is_grad_enabled() and requires_grad(given.tensors):
            raise InputError(f"{self.name}: a program gives no gradients; call it under torch.no_grad()")
        if given.key not in self._programs:
            raise InputError(
                f"{self.name}: it was compiled for other arguments, or other values of flags; it takes\n"
                + "\n".join(f"    {_key_text(key)}" for key in self._programs)
            )
        shapes = tuple(t.shape for t in given.tensors)
        known = self._known[given.key]
        program = known.get(shapes)
        if program is None:
            program = self._find(given.key, shapes)
            remember(known, shapes, program, KNOWN)
        return program.finished(program(given.tensors), given.caches)

    def _find(self, key: Key, shapes: tuple[Shape, ...]) -> Program:
        for program in self._programs[key]:
            small = program.small(shapes)
            if small is not None and (not small or small in program.checked):
                return program
        programs = self._programs[key]
        given = ", ".join(f"{n} {list(s)}" for n, s in zip(programs[0].names, shapes, strict=True))
        raise GuardError(
            f"{self.name}: no program takes {given}; there are programs for\n"
            + "\n".join(f"    {p.signature()}" for p in programs)
            + "\nwith sizes of 2 and more, and those of 0 and 1 at which they were compared with the model"
        )

    def wait(self, timeout: float | None = None) -> bool:
        """Whether superoptimization in the background has had its budget, within so many seconds if a timeout is given."""
        return all([p.graph.executable.wait(timeout) for p in self.programs])

    def close(self) -> None:
        """End superoptimization in the background."""
        for p in self.programs:
            p.graph.executable.close()

    def explain(self) -> str:
        """The programs with their guards and operators, and what of them runs in torch."""
        lines = [f"{self.name}: {len(self.programs)} program{'s' * (len(self.programs) != 1)}"]
        for k, program in enumerate(self.programs):
            lines += ["", *program.described(k)]
        return "\n".join(lines) + "\n"

    def __repr__(self) -> str:
        return f"CompiledPrograms({self.name})"


def _key_text(key: Key) -> str:
    """The kinds of arguments, such as `input_ids: int64 of rank 2, use_cache=False`."""
    count, names, *items = key
    top = [*(f"args[{k}]" for k in range(count)), *names]
    return ", ".join(f"{n}: {_item_text(x)}" for n, x in zip(top, items, strict=True))


def _item_text(item: Any) -> str:
    first = item[0]
    if isinstance(first, torch.dtype):
        return f"{dtype_name(first)} of rank {item[1]}"
    return repr(item[1]) if isinstance(first, type) else f"({', '.join(map(_item_text, item[1:]))})"
