"""The interface that `onnx.backend.base` asks for: `prepare`, `run_model`, `run_node`, `supports_device`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from mirage.onnx.model import CompiledModel, compile


class Prepared(BackendRep):
    """A compiled model as ONNX's tests call it."""

    def __init__(self, model: CompiledModel) -> None:
        self.model = model

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs for inputs in order, or by name."""
        if isinstance(inputs, dict):
            return self.model.run(inputs)
        given = inputs if isinstance(inputs, list | tuple) else [inputs]
        return self.model.run(dict(zip(self.model.inputs, given, strict=False)))


class MirageBackend(Backend):
    """Models compiled by mirage, on the processor."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **options: Any) -> Prepared:
        """The compiled model; `options` are as of `mirage.compile`. Without any, subprograms are not searched."""
        super().prepare(model, device)
        return Prepared(compile(model, **(options or {"without": ("superoptimize",)})))

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **options: Any) -> tuple[Any, ...]:
        """The outputs of a model for inputs."""
        return cls.prepare(model, device, **options).run(inputs)

    @classmethod
    def run_node(
        cls, node: Any, inputs: Any, device: str = "CPU", outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **options: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        """The outputs of a model of one node, of the newest operators, for inputs."""
        from onnx import helper

        super().run_node(node, inputs, device, outputs_info)
        given = inputs if isinstance(inputs, list | tuple) else [inputs]
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.asarray(x).dtype), np.shape(x))
            for name, x in zip((n for n in node.input if n), given, strict=True)
        ]
        graph = helper.make_graph(
            [node], "node", infos, [helper.make_empty_tensor_value_info(n) for n in node.output if n]
        )
        return cls.run_model(helper.make_model(graph), given, device, **options)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models run on a device: on the processor."""
        return bool(Device(device).type == DeviceType.CPU)


prepare = MirageBackend.prepare
run_model = MirageBackend.run_model
run_node = MirageBackend.run_node
supports_device = MirageBackend.supports_device
