"""Programs of a model, called with its inputs: with or without the model that they were made of, and without onnx."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from mirage.errors import GuardError, InputError
from mirage.frontends.imported import Given, Imported
from mirage.frontends.onnx.objects import listed
from mirage.runtime.executable import Executable
from mirage.runtime.frame import getter

#: the values of the inputs that decide shapes, in order, for which a program was made
Values: TypeAlias = tuple[np.ndarray, ...]
#: what tells such values apart
Key: TypeAlias = tuple[tuple[str, tuple[int, ...], bytes], ...]


def key_of(values: Sequence[np.ndarray]) -> Key:
    """What tells values from others."""
    return tuple((x.dtype.name, x.shape, x.tobytes()) for x in values)


class Program:
    """One imported model, compiled, with its weights; for all values of inputs that decide shapes, or for these."""

    def __init__(self, imported: Imported, executable: Executable, values: Values | None = None) -> None:
        self.imported = imported
        self.executable = executable
        self.values = values
        # the weights are behind the inputs
        given: dict[str, Any] = dict(zip(executable.parameters[len(imported.inputs) :], imported.attributes, strict=False))
        if not imported.inputs and len(executable.parameters) > len(given):
            # a program that reads nothing has a parameter nevertheless
            given[executable.parameters[0]] = ()
        self._run = executable.bind(**given)
        self._inputs = getter(imported.inputs)

    def __call__(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs for all inputs of the model, in order. Raises what `Executable.__call__` raises."""
        found = self._run(*self._inputs(inputs))
        return tuple([listed(found[o]) if isinstance(o, int) else _given(o, inputs) for o in self.imported.outputs])


def _given(o: Given, inputs: Sequence[Any]) -> Any:
    return o.value if o.position is None else inputs[o.position]


class CompiledPrograms:
    """A model as the programs that there are of it: `inputs` and `outputs` are the names of what calls take and give, in order.

    `deciding` are the inputs whose values decide shapes, for which there are programs of their own; `optional` those that a call
    may leave out.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        deciding: Sequence[str] = (),
        optional: Collection[str] = (),
        programs: Sequence[Program] = (),
    ) -> None:
        self.name = name
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.deciding = tuple(deciding)
        self.optional = frozenset(optional)
        self._programs = {key_of(p.values): p for p in programs if p.values is not None}
        self._general = next((p for p in programs if p.values is None), None)

    @property
    def programs(self) -> list[Program]:
        """The programs that there are."""
        return [*self._programs.values(), *([self._general] if self._general else [])]

    def __call__(self, *args: Any, **named: Any) -> Any:
        """The model's result for arrays in the order of its inputs, or by name: one output, or a tuple of them.

        Raises InputError for what does not fit, GuardError, which names the dim, for sizes that contradict each other, and for
        values that decide shapes and that there is no program for; of a model, what importing it for them raises.
        """
        count = len(self.inputs)
        if named or len(args) != count or self.deciding or self._general is None:
            if len(args) > count:
                raise InputError(f"{self.name}: {len(args)} inputs, and it takes {count}: {', '.join(self.inputs)}")
            given = dict(zip(self.inputs, args, strict=False))
            if twice := [n for n in named if n in given]:
                raise InputError(f"{self.name}: input {twice[0]!r} is given twice; give it in order or by name")
            found = self.run({**given, **named})
        else:
            found = self._general(args)
        return found[0] if len(found) == 1 else found

    def run(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        """All outputs for inputs by name. Raises what calls raise."""
        if unknown := [n for n in inputs if n not in self.inputs]:
            raise InputError(f"{self.name}: there is no input {unknown[0]!r}; the inputs are {', '.join(self.inputs)}")
        if missing := [n for n in self.inputs if n not in inputs and n not in self.optional]:
            raise InputError(f"{self.name}: no input {missing[0]!r}; the inputs are {', '.join(self.inputs)}")
        values = tuple(_native(np.asarray(inputs.get(n))) for n in self.deciding)
        return self._program(values)([inputs.get(n) for n in self.inputs])

    def _program(self, values: Values) -> Program:
        """The program for values that decide shapes."""
        found = self._programs.get(key_of(values)) if self.deciding else None
        found = found or self._general
        if found is None:
            given = ", ".join(f"{n} = {_text(x)}" for n, x in zip(self.deciding, values, strict=True))
            known = "".join(f"\n    {', '.join(map(_text, p.values or ()))}" for p in self._programs.values())
            raise GuardError(
                f"{self.name}: there is no program for {given}; call the model with it before it is saved. It has{known}"
            )
        return found

    def wait(self, timeout: float | None = None) -> bool:
        """Whether superoptimization in the background has had its budget, within so many seconds if a timeout is given."""
        return all([p.executable.wait(timeout) for p in self.programs])

    def close(self) -> None:
        """End superoptimization in the background."""
        for p in self.programs:
            p.executable.close()

    def explain(self) -> str:
        """The programs, and what of them runs in ONNX's reference evaluator."""
        lines = [f"{self.name}: inputs {', '.join(self.inputs) or 'none'}; outputs {', '.join(self.outputs)}"]
        if self.deciding:
            lines.append(
                f"one program for each set of values of {', '.join(self.deciding)}: {len(self._programs)} so far"
            )
        for program in self.programs:
            imported = program.imported
            lines += [
                f"{imported.native.total()} operators native, {imported.fallback.total()} calls of the reference evaluator",
                *(f"    {n} {op}: {imported.reasons.get(op, '')}" for op, n in imported.fallback.items()),
                program.executable.explain().rstrip(),
            ]
        return "\n".join(lines) + "\n"

    def to_json(self) -> dict[str, Any]:
        """What `explain` says, as data."""
        programs = [
            {
                "native": dict(p.imported.native),
                "fallback": dict(p.imported.fallback),
                "reasons": dict(p.imported.reasons),
                "executable": p.executable.to_json(),
            }
            for p in self.programs
        ]
        return {"inputs": self.inputs, "outputs": self.outputs, "deciding": self.deciding, "programs": programs}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


def _native(x: np.ndarray) -> np.ndarray:
    """The array in this machine's order of bytes."""
    return x.astype(x.dtype.newbyteorder("="), copy=False)


def _text(x: np.ndarray) -> str:
    """A few elements of an array."""
    return np.array2string(x, threshold=8, separator=", ")
