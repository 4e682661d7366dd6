"""Results for CUDA devices: versions of a program that a model ranks until a device has measured them.

What it exports is imported when it is first used: it stands on half of `mirage.kernels`, which nothing else needs on a CPU.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
