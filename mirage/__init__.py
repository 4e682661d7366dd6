"""A tensor superoptimizer: faster kernels, proved equivalent, for every shape.

What it exports is listed in `__init__.pyi`, and each name is imported when it is first used: so is SymPy, whose import takes
longer than that of everything else.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
