"""What `mirage.onnx` exports, and from where."""

from .model import CompiledModel as CompiledModel
from .model import compile as compile

__all__: list[str]
