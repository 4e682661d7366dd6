"""Graphs of one ATen operator, imported, and run by the interpreter of the graph IR beside eager."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils import _pytree as pytree

from mirage.compilation import compile
from mirage.frontends.aten.fallback import NAME, _to_numpy, library, packed, to_torch
from mirage.frontends.aten.importer import import_graph
from mirage.frontends.imported import Given, Imported
from mirage.ir.graph.interpret import run_module
from mirage.torch.compiled import CompiledGraph

#: whether the dims of arguments are symbols; or the positions of arguments whose are
Dynamic: TypeAlias = bool | tuple[int, ...]


def graph_of(op: Any, args: Sequence[Any], kwargs: dict[str, Any], dynamic: Dynamic = True) -> torch.fx.GraphModule:
    """One overload called. Dims of 2 or more of dynamic arguments are symbols, equal where the operator needs that."""
    env = ShapeEnv(duck_shape=False, allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    graph = torch.fx.Graph()
    flat, spec = pytree.tree_flatten((list(args), kwargs))
    nodes, fakes = [], []
    for k, x in enumerate(flat):
        if not isinstance(x, torch.Tensor):
            nodes.append(x)
            fakes.append(x)
            continue
        symbolic = dynamic if isinstance(dynamic, bool) else k in dynamic
        kind = DimDynamic.DYNAMIC if symbolic else DimDynamic.STATIC
        context: Any = StatelessSymbolicContext(dynamic_sizes=[kind] * x.ndim)
        fake = mode.from_tensor(x, symbolic_context=context, source=torch._dynamo.source.ConstantSource(f"x{k}"))
        nodes.append(graph.placeholder(f"x{k}"))
        nodes[-1].meta["val"] = fake
        fakes.append(fake)
    given, options = pytree.tree_unflatten(fakes, spec)
    with mode, enable_python_dispatcher():
        value = op(*given, **options)
    call_args, call_kwargs = pytree.tree_unflatten(nodes, spec)
    call = graph.call_function(op, tuple(call_args), call_kwargs)
    call.meta["val"] = value
    if isinstance(value, tuple | list):
        items = []
        for k, v in enumerate(value):
            items.append(graph.call_function(operator.getitem, (call, k)))
            items[-1].meta["val"] = v
        graph.output(items)
    else:
        graph.output([call])
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def interpreted(imported: Imported, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What the interpreter of the graph IR gives for a graph that takes tensors and gives tensors."""
    given = [_to_numpy(inputs[k]) for k in imported.inputs]
    found = run_module(imported.module, given, packed={NAME: packed}, library={NAME: library})
    outputs = []
    for o in imported.outputs:
        if isinstance(o, Given):
            assert o.position is not None
            outputs.append(inputs[o.position])
        else:
            outputs.append(to_torch(found[o]))
    return outputs


def tensors_of(args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves((list(args), kwargs)) if isinstance(x, torch.Tensor)]


def check(
    op: Any,
    *args: Any,
    others: Sequence[Sequence[Any]] = (),
    dynamic: Dynamic = True,
    compiled: bool = False,
    **kwargs: Any,
) -> Imported:
    """The operator is lowered natively, and gives what eager does for these arguments and for `others`, with the same graph."""
    imported = import_graph(graph_of(op, args, kwargs, dynamic), only_native=True)
    run: Any = partial(interpreted, imported)
    if compiled:
        run = CompiledGraph(imported, compile(imported.module, without=("superoptimize",), cache=False))
    for given in (args, *others):
        found = run(tensors_of(given, kwargs))
        expected = op(*given, **kwargs)
        wanted = list(expected) if isinstance(expected, tuple | list) else [expected]
        assert len(found) == len(wanted)
        for x, y in zip(found, wanted, strict=True):
            torch.testing.assert_close(x, y, equal_nan=True)
    return imported
