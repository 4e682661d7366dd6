"""Evidence that a muGraph computes its program: proof, finite fields, numerical safety.

The package can be called: `mirage.verify(a, b)` is `mirage.api.verify`, whose natural name it shares.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, a: Any, b: Any, *, seed: int = 0) -> Any:
        from mirage.api import verify

        return verify(a, b, seed=seed)


sys.modules[__name__].__class__ = _CallablePackage
