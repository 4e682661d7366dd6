"""Models of PyTorch for `mirage.quantize`: exported and imported, with their weights as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mirage.errors import UnsupportedNode
from mirage.frontends.aten.fallback import to_array
from mirage.frontends.aten.importer import import_graph
from mirage.frontends.convolutions import as_windows
from mirage.frontends.imported import Imported
from mirage.torch.export import Call, export, widened


def imported_model(
    model: torch.nn.Module, data: Sequence[Any], dynamic: bool
) -> tuple[Imported, dict[str, np.ndarray], list[tuple[np.ndarray, ...]]]:
    """A model as a module, as it is exported for the first sample; its weights by parameter; all samples as arrays.

    Raises UnsupportedNode for what torch cannot export, or has a state that calls change.
    """
    samples = [one if isinstance(one, tuple | list) else (one,) for one in data]
    tensors = [torch.as_tensor(x) for x in samples[0]]
    exported = export(Call(model.eval(), tensors, {}), widened(tensors) if dynamic else tensors, dynamic)
    signature = exported.graph_signature
    if any("MUTATION" in s.kind.name for s in signature.output_specs):
        raise UnsupportedNode("the model writes to its own state, or to its inputs, in a call; quantize what does not")
    with as_windows():
        imported = import_graph(exported.graph_module)
    parameters = imported.module.functions[imported.module.main].parameters
    count = len(imported.inputs)
    arrays: dict[str, np.ndarray] = {}
    for k, p in zip(imported.inputs, parameters, strict=False):
        spec = signature.input_specs[k]
        if spec.kind.name != "USER_INPUT":
            value = exported.state_dict.get(spec.target)
            arrays[p.name] = _array(exported.constants[spec.target] if value is None else value)
    arrays |= {p.name: _array(t) for p, t in zip(parameters[count:], imported.attributes, strict=True)}
    return imported, arrays, [tuple(_array(torch.as_tensor(x)) for x in one) for one in samples]


def _array(tensor: Any) -> np.ndarray:
    return np.asarray(to_array(tensor.detach()))
