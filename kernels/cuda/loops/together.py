"""Compilations that wait for one another: the compiler starts once for all of them, when the first one is needed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

from mirage.errors import CompilerError
from mirage.kernels.cuda.compile.functions import Request
from mirage.kernels.cuda.compile.kernels import CompiledKernel, compile_all


class Compilation:
    """Kernels that are compiled when `results` is first read, together with those of all others that wait."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = list(requests)
        self._results: list[CompiledKernel | CompilerError] = []
        if self._requests:
            with _LOCK:
                _WAITING.add(self)

    @property
    def results(self) -> list[CompiledKernel | CompilerError]:
        """As `compile_all` gives them for the requests, and raises errors."""
        with _LOCK:
            if len(self._results) < len(self._requests):
                together = [self, *(c for c in _WAITING if c is not self)]
                found = iter(compile_all([r for c in together for r in c._requests]))
                for c in together:
                    c._results = [next(found) for _ in c._requests]
                    _WAITING.discard(c)
            return self._results


_LOCK = threading.Lock()
_WAITING: weakref.WeakSet[Compilation] = weakref.WeakSet()
