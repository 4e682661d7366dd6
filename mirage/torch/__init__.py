"""PyTorch's models through the graph compiler: `mirage.torch.compile(model)`, and `torch.compile(model, backend="mirage")`.

What knows of both torch and the compiler is here; graphs become modules in `mirage/frontends/aten`, which knows no compiler.
What it exports is listed in `__init__.pyi`, and imported, with torch, when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
