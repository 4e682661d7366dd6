"""ONNX models through the graph compiler: `mirage.compile("model.onnx")`, and a backend as ONNX's own tests ask for.

Models become modules in `mirage/frontends/onnx`, which knows no compiler. What this package exports is listed in `__init__.pyi`,
and imported when it is first used: with onnx, but for `load` and what it gives.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
