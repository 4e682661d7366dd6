"""The forms of `benchmarks/peers/in_torch.py` compiled by `torch.compile` (TorchInductor, which needs g++)."""

from __future__ import annotations

import functools
import itertools
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO
from types import CodeType, FunctionType

import numpy as np
import torch
from torch import Tensor
from torch._dynamo import config as dynamo
from torch._inductor import config as inductor

from benchmarks.peers.in_torch import Form, torch_forms

#: where functions with code of their own are said to begin: equal code objects are one to dictionaries
_LINES = itertools.count(1_000_000)


def compiled_versions(
    name: str, inputs: Mapping[str, np.ndarray], weights: Sequence[str], threads: int, say: Callable[[str], None]
) -> Mapping[str, Callable[[], Tensor]]:
    """By label, compiled functions of no arguments that compute program `name` for these inputs, by name.

    Everything is tried that `mode="max-autotune"` knows, for these sizes alone. Programs with weights have a version with
    weights as constants, which the compiler packs for matmuls of its own. Each is there twice: one allocates its result, one
    writes it to memory that it is given, into which the compiler fuses what computes it. All are compiled in here, by a first
    call in `torch.inference_mode`; what cannot be compiled is left out, and `say` is told why.
    """
    forms = {label: f for label, f in torch_forms(name, list(inputs.values()), threads).items() if f.out is None}
    if weights:
        constant = [n in weights for n in inputs]
        rest = tuple(a for a, fixed in zip(forms[""].arguments, constant, strict=True) if not fixed)
        forms["constant weights"] = Form(Frozen(forms[""], constant).eval(), rest)
    versions: dict[str, Callable[[], Tensor]] = {}
    for label, form in forms.items():
        out = torch.empty_like(form())
        for kind, run in ((label, form.run), (f"{label}, out=".removeprefix(", "), into(form.run))):
            # memory is the first argument
            given = form.arguments if run is form.run else (out, *form.arguments)
            version = Form(
                torch.compile(with_own_code(run, f"{name} {kind}"), mode="max-autotune", dynamic=False), given
            )
            if compiles(f"{name}: torch.compile {kind}".strip(), version, say):
                versions[kind] = version
    return versions


def into(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function that writes what `run` returns to its first argument."""

    def write(out: Tensor, *given: Tensor) -> Tensor:
        return out.copy_(run(*given))

    return write


def with_own_code(run: Callable[..., Tensor], label: str) -> Callable[..., Tensor]:
    """The same function with a code object that it shares with those of the same label alone; what is no function as it is.

    The compiler keeps what it has compiled by code objects. A call looks through all that is kept for its own, of which there are
    a few at most: beyond these, functions run uncompiled.
    """
    if not isinstance(run, FunctionType):
        return run
    code = _own_code(run.__code__, label)
    return FunctionType(code, run.__globals__, run.__name__, run.__defaults__, run.__closure__)


@functools.cache
def _own_code(code: CodeType, label: str) -> CodeType:
    return code.replace(co_firstlineno=next(_LINES))


class Frozen(torch.nn.Module):  # type: ignore[misc]
    """A form whose constant arguments are the parameters of a module, as a model has them."""

    def __init__(self, form: Form, constant: Sequence[bool]) -> None:
        super().__init__()
        weights = [a for a, is_constant in zip(form.arguments, constant, strict=True) if is_constant]
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(w, requires_grad=False) for w in weights)
        self._run = form.run
        self._constant = tuple(constant)

    def forward(self, *given: Tensor) -> Tensor:
        rest, weights = iter(given), iter(self.weights)
        return self._run(*(next(weights if is_constant else rest) for is_constant in self._constant))


def compiles(what: str, run: Callable[[], Tensor], say: Callable[[str], None]) -> bool:
    """Whether the first call, which compiles, succeeds."""
    # one process compiles: workers that wait for more would share the cores with what is measured
    # and graphs are not taken from the cache folder, where they have the frozen weights of earlier runs
    settings = {"freezing": True, "fx_graph_cache": False, "compile_threads": 1, "autotune_num_choices_displayed": 0}
    autotuning = logging.getLogger("torch._inductor.select_algorithm")
    level = autotuning.level
    try:
        autotuning.setLevel(logging.ERROR)
        with (
            inductor.patch(settings),
            # instead of running uncompiled
            dynamo.patch(fail_on_recompile_limit_hit=True),
            warnings.catch_warnings(action="ignore"),
            redirect_stderr(StringIO()),
            torch.inference_mode(),
        ):
            run()
    except Exception as e:  # of a compiler that is no part of this project: anything
        say(f"{what} is left out: {type(e).__name__}: {str(e).strip().partition(chr(10))[0]}")
        return False
    finally:
        autotuning.setLevel(level)
    return True
