"""Models of ONNX for `mirage.quantize`: imported, with their weights as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto

from mirage.errors import QuantizationError
from mirage.frontends.convolutions import as_windows
from mirage.frontends.imported import Imported
from mirage.frontends.onnx.files import checked_model, load_model
from mirage.frontends.onnx.importer import import_model


def imported_model(model: Any) -> tuple[Imported, dict[str, np.ndarray], Sequence[str]]:
    """A model, or a file of one, as a module; its weights by parameter; the names of its inputs, in the order of parameters.

    Raises QuantizationError where values of inputs decide shapes, InputError, FormatError and UnsupportedNode as
    `mirage.onnx.model.compile`.
    """
    checked = checked_model(model, "model") if isinstance(model, ModelProto) else load_model(model)
    with as_windows():
        imported = import_model(checked)
    if imported.needed:
        raise QuantizationError(f"the values of {imported.needed[0]!r} decide shapes; make it a constant of the model")
    initialized = {t.name for t in checked.graph.initializer} | {s.values.name for s in checked.graph.sparse_initializer}
    given = [i.name for i in checked.graph.input if i.name not in initialized]
    arrays = {n: np.asarray(a) for n, a in zip(imported.weights, imported.attributes, strict=True)}
    return imported, arrays, [given[k] for k in imported.inputs]
