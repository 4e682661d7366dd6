"""The forms of `benchmarks/peers/in_torch.py` compiled by `torch.compile` (TorchInductor, which needs g++)."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO

import numpy as np
import torch
from torch import Tensor
from torch._inductor import config as inductor

from benchmarks.peers.in_torch import Form, torch_forms


def compiled_versions(
    name: str, inputs: Mapping[str, np.ndarray], weights: Sequence[str], threads: int, say: Callable[[str], None]
) -> Mapping[str, Callable[[], Tensor]]:
    """By label, compiled functions of no arguments that compute program `name` for these inputs, by name.

    Everything is tried that `mode="max-autotune"` knows, for these sizes alone. Programs with weights have a version with
    weights as constants, which the compiler packs for matmuls of its own. All are compiled in here, by a first call in
    `torch.inference_mode`; what cannot be compiled is left out, and `say` is told why.
    """
    forms = torch_forms(name, list(inputs.values()), threads)
    versions: dict[str, Callable[[], Tensor]] = {}
    for label, form in forms.items():
        versions[label] = Form(torch.compile(form.run, mode="max-autotune", dynamic=False), form.arguments)
    if weights:
        versions["constant weights"] = _with_constants(forms[""], [n in weights for n in inputs])
    return {label: run for label, run in versions.items() if compiles(f"{name}: torch.compile {label}", run, say)}


def _with_constants(form: Form, constant: Sequence[bool]) -> Form:
    arguments = tuple(a for a, is_constant in zip(form.arguments, constant, strict=True) if not is_constant)
    return Form(torch.compile(Frozen(form, constant).eval(), mode="max-autotune", dynamic=False), arguments)


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
