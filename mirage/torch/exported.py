"""`mirage.compile(exported_program)`: programs that somebody else exported."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mirage.errors import InputError
from mirage.torch.arguments import split
from mirage.torch.compare import compare_small
from mirage.torch.export import decomposed, program_of
from mirage.torch.model_options import ranges_of
from mirage.torch.programs import CompiledPrograms


def compile_exported(
    exported: Any, *, specs: Any = None, constants: Collection[str] = (), bounds: Mapping[str, Any] | None = None, **options: Any
) -> CompiledPrograms:
    """The compiled program of an exported one, called with the arguments that its module takes.

    Its weights are constants, its dims those that were declared dynamic when it was exported. `bounds` limits dims of inputs,
    `{"x": {0: 8}}`, `options` are as of `mirage.compile`. Raises InputError for an option that has no meaning for it,
    UnsupportedNode, which lists all nodes that cannot be compiled.
    """
    if specs is not None or constants:
        what = "specs" if specs is not None else "constants"
        raise InputError(f"{what} has no meaning for an exported program: its types are known, and its weights are constants")
    module = exported.module()
    placeholders = {n.name: n for n in exported.graph.nodes if n.op == "placeholder"}
    inputs = [placeholders[s.arg.name] for s in exported.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    values = [n.meta.get("val") for n in inputs]
    # the place of each leaf, in the order in which calls take them
    args, kwargs = pytree.tree_unflatten(list(range(len(values))), exported.call_spec.in_spec)
    leaves = pytree.tree_leaves([*args, *(kwargs[name] for name in sorted(kwargs))])
    tensors = [k for k, v in enumerate(values) if isinstance(v, torch.Tensor)]
    places = [k for k in leaves if k in tensors]
    names = [inputs[k].name for k in places]
    ranges = ranges_of(bounds)
    if unknown := sorted(ranges.keys() - set(names)):
        raise InputError(f"bounds: there is no tensor {unknown[0]!r}; the tensors are {', '.join(names)}")
    order = [tensors.index(k) for k in places]
    program = program_of(decomposed(exported), None, names, bounds=ranges, order=order, **options)
    examples = [torch.empty([0] * v.ndim, dtype=v.dtype) if isinstance(v, torch.Tensor) else v for v in values]
    given = split(*pytree.tree_unflatten(examples, exported.call_spec.in_spec))

    def model(tensors: Any) -> Any:
        every = list(examples)
        for k, t in zip(places, tensors, strict=True):
            every[k] = t
        args, kwargs = pytree.tree_unflatten(every, exported.call_spec.in_spec)
        return module(*args, **kwargs)

    compare_small(program, [t.dtype for t in given.tensors], model)
    return CompiledPrograms("exported program", [(given.key, program)])
