"""What `mirage.onnx` exports, and from where."""

from .model import CompiledModel as CompiledModel
from .model import compile as compile
from .programs import CompiledPrograms as CompiledPrograms
from .saved import load as load

__all__: list[str]
