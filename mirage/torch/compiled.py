"""An imported graph, compiled: called with the graph's inputs, gives the graph's outputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from mirage.compilation import compile
from mirage.frontends.aten.importer import Given, Imported
from mirage.ir.annotations import ShapeType
from mirage.runtime.executable import Executable


class CompiledGraph:
    """A graph of ATen operators as an executable. Inputs and outputs are those of the graph, in order."""

    def __init__(self, imported: Imported, executable: Executable) -> None:
        self.imported = imported
        self.executable = executable
        main = imported.module.functions[imported.module.main]
        self._sizes = [isinstance(p.annotation, ShapeType) for p in main.parameters[: len(imported.inputs)]]
        #: whether the module has results of the graph, or only effects
        self._many = any(isinstance(o, int) for o in imported.outputs)
        shapes = getattr(main.returns, "fields", ())
        self._shapes = {k for k, t in enumerate(shapes) if isinstance(t, ShapeType)}

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for these inputs: tensors, sizes as integers. Raises what `Executable.__call__` raises."""
        given = [
            (int(inputs[k]),) if size else inputs[k] for k, size in zip(self.imported.inputs, self._sizes, strict=True)
        ]
        found = self.executable(*given, *self.imported.attributes)
        outputs: list[Any] = []
        for o in self.imported.outputs:
            if isinstance(o, Given):
                outputs.append(o.value if o.position is None else inputs[o.position])
            else:
                outputs.append(found[o][0] if o in self._shapes else as_tensor(found[o]))
        return outputs


def as_tensor(x: Any) -> Any:
    """A result as a tensor of torch."""
    return x if isinstance(x, torch.Tensor) else torch.as_tensor(x)


def compiled_graph(imported: Imported, constants: Collection[int] = (), **options: Any) -> CompiledGraph:
    """Compile an imported graph; `constants` are positions of inputs that never change, `options` those of `mirage.compile`."""
    main = imported.module.functions[imported.module.main]
    names = [p.name for p in main.parameters]
    fixed = [names[i] for i, k in enumerate(imported.inputs) if k in constants] + names[len(imported.inputs) :]
    return CompiledGraph(imported, compile(imported.module, constants=fixed, **options))
