"""The backend of torch.compile: `torch.compile(model, backend="mirage")`.

Dynamo gives a graph for each part of a model between graph breaks, with symbols for sizes; AOTAutograd makes of it one of ATen's
operators without effects but on inputs, and what a user sees of aliases, views and tensor subclasses is its business. Where
gradients are needed, there are two, forward and backward. A graph that is not compiled runs in eager mode as Dynamo gave it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mirage.compiler.constraints.bounds import from_range_constraints
from mirage.errors import InputError, UnsupportedNode
from mirage.frontends.aten.composite import kept_whole
from mirage.frontends.aten.decompose import decompositions
from mirage.frontends.aten.importer import import_graph
from mirage.frontends.aten.types import dim_of
from mirage.frontends.aten.updates import written_inputs
from mirage.ir.annotations import symbols_in
from mirage.logs import configure
from mirage.torch.background import Later
from mirage.torch.compiled import compiled_graph, sizes_to_tune
from mirage.torch.export import first_line
from mirage.torch.guards import Range, hints
from mirage.torch.lifted import LiftedGraph
from mirage.torch.log import FALLBACKS, GRAPHS
from mirage.torch.model_options import ModelOptions, ranges_of
from mirage.torch.program import check_bounds
from mirage.torch.training import with_gradients
from mirage.torch.views import split_views
from mirage.torch.weights import requires_grad

#: the options of `mirage.torch.compile` that torch.compile takes
OPTIONS = ("budget", "bounds", "background", "target", "without", "weights", "strict", "cache", "seed")
#: seconds for the superoptimization of a graph, by mode of torch.compile
BUDGETS: Mapping[str, float] = {
    "default": 60.0, "reduce-overhead": 60.0, "max-autotune-no-cudagraphs": 600.0, "max-autotune": 600.0,
}  # fmt: skip
#: what torch counts of a backend's graphs, `torch._dynamo.utils.counters["mirage"]`: compiled ones, those that run in eager mode
#: as they cannot be, and those that are compiled with their gradients
COMPILED, EAGER, GRADIENTS = "compiled", "eager", "gradients"


def mirage(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any], *, mode: Any = None, options: Any = None
) -> Callable[..., Any]:
    """A graph of Dynamo as a function of its inputs; `mode` and `options` are those of torch.compile.

    Raises a MirageError for options that are none; with `strict`, also what keeps the graph from being compiled.
    """
    return graph_of_dynamo(graph, example_inputs, options_of(mode, options))


def graph_of_dynamo(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any], chosen: ModelOptions
) -> Callable[..., Any]:
    """As `mirage`, with the options of `mirage.torch.compile`."""
    from torch._dynamo.utils import counters

    configure()
    symbols, positions = _declared(graph, example_inputs, ranges_of(chosen.bounds))
    run: Callable[..., Any] = graph.forward
    counted = EAGER
    try:
        run, counted = _compiled(graph, example_inputs, symbols, chosen)
    except torch._dynamo.exc.RestartAnalysis:
        # Dynamo makes the graph again
        raise
    except Exception as e:
        if chosen.strict:
            raise
        FALLBACKS.warning("a graph of %d nodes runs in eager mode: %s", len(graph.graph.nodes), first_line(e))
    counters["mirage"][counted] += 1
    return _within(run, graph, positions) if positions else run


def options_of(mode: Any = None, given: Any = None) -> ModelOptions:
    """The options for a mode and options of torch.compile; raises a MirageError for one that is unknown or has a wrong value."""
    if mode is not None and mode not in BUDGETS:
        raise InputError(f"mode={mode!r} is not known; use one of {', '.join(map(repr, BUDGETS))}")
    if given is not None and not isinstance(given, Mapping):
        raise InputError(f"options={given!r} is not a dict; pass options={{'budget': 60}}")
    if unknown := [name for name in given or {} if name not in OPTIONS]:
        raise InputError(f"options: {unknown[0]!r} is not known; the options are {', '.join(OPTIONS)}")
    return ModelOptions(**{"budget": BUDGETS[mode or "default"], **(given or {})})


class _NeedsGradients(Exception):
    """AOTAutograd asks for a forward and a backward graph."""


def _compiled(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any], declared: Mapping[str, Range], options: ModelOptions
) -> tuple[Callable[..., Any], str]:
    """The graph as a function, and as what it counts."""
    _check_devices(graph, example_inputs)
    if not _needs_gradients(graph, example_inputs):
        try:
            return _inference(graph, example_inputs, declared, options), COMPILED
        except _NeedsGradients:
            pass
    # weights change with every step
    found = with_gradients(
        graph, example_inputs, lambda g: _graph_of_aten(g, declared, options, None), strict=options.strict
    )
    return found, GRADIENTS


def _inference(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any], declared: Mapping[str, Range], options: ModelOptions
) -> Callable[..., Any]:
    from torch._functorch.aot_autograd import aot_module_simplified

    def inference(g: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
        return _graph_of_aten(g, declared, options, _of_modules(graph))

    def training(g: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        raise _NeedsGradients

    with kept_whole():
        found: Callable[..., Any] = aot_module_simplified(
            graph,
            example_inputs,
            fw_compiler=training,
            bw_compiler=training,
            inference_compiler=inference,
            decompositions=decompositions(),
            keep_inference_input_mutations=True,
        )
    return found


def _within(
    run: Callable[..., Any], graph: torch.fx.GraphModule, declared: Mapping[int, Mapping[int, Range]]
) -> Callable[..., Any]:
    """The graph, which checks first that sizes are within the bounds that the user declared."""
    names = [_argument(n) for n in graph.graph.nodes if n.op == "placeholder"]
    names = [names[k] for k in declared]
    bounds = dict(zip(names, declared.values(), strict=True))

    def checked(*inputs: Any) -> Any:
        check_bounds(bounds, names, [inputs[k].shape for k in declared])
        return run(*inputs)

    return checked


def _needs_gradients(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Whether gradients are known to be needed; a graph that ends gradients itself is left to AOTAutograd."""
    ends = any(n.target is torch._C._set_grad_enabled for n in graph.graph.nodes)
    return torch.is_grad_enabled() and not ends and requires_grad([x for x in example_inputs if isinstance(x, torch.Tensor)])


def _check_devices(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    """Raise UnsupportedNode for tensors that are not in main memory, among the inputs or made by the graph."""
    made = [n.meta.get("example_value") for n in graph.graph.nodes]
    for x in (*example_inputs, *made):
        if isinstance(x, torch.Tensor) and x.device.type != "cpu":
            raise UnsupportedNode(f"a tensor is on {x.device}; graphs are compiled for tensors on the CPU")


def _of_modules(graph: torch.fx.GraphModule) -> list[bool]:
    """Which inputs of Dynamo's graph are tensors of modules: caches are static as well, and written to in every step."""
    sources = [getattr(n, "_dynamo_source", None) for n in graph.graph.nodes if n.op == "placeholder"]
    return [s is not None and bool(s.guard_source.is_unspecialized_nn_module()) for s in sources]


def _graph_of_aten(
    graph: torch.fx.GraphModule, declared: Mapping[str, Any], options: ModelOptions, of_modules: Sequence[bool] | None
) -> LiftedGraph:
    """A graph of ATen's operators, compiled.

    `of_modules` says it of its inputs, where these are as many as Dynamo's; None where no input stays the same between calls.
    """
    views = split_views(graph)
    imported = import_graph(graph)
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    main = imported.module.functions[imported.module.main]
    known = {s for p in main.parameters for s in symbols_in(p.annotation)}
    bounds = {**_ranges(placeholders, known), **declared}
    bounds = {name: bound for name, bound in bounds.items() if name in known}
    begun = time.perf_counter()
    search = not options.background
    sizes = sizes_to_tune(imported, hints([p.meta.get("val") for p in placeholders]), bounds)
    constants = [] if of_modules is None else _constants(graph, placeholders, of_modules)
    compiled = compiled_graph(imported, constants, bounds=bounds, sizes=sizes, **options.compilation(search))
    (outputs,) = graph.graph.output_node().args
    fakes = [n.meta.get("val") if isinstance(n, torch.fx.Node) else n for n in outputs]
    lifted = LiftedGraph(compiled, len(placeholders), fakes, views, bounds)
    GRAPHS.info(
        "a graph of Dynamo: %d operators, %d of them calls of ATen's; compiled in %.1f s",
        imported.native.total() + imported.fallback.total(), imported.fallback.total(), time.perf_counter() - begun,
    )  # fmt: skip
    for name, why in imported.reasons.items():
        FALLBACKS.info("%s is a call of ATen's own: %s", name, why)
    if options.background:
        _later(options).add(lifted)
    return lifted


_laters: list[tuple[ModelOptions, Later]] = []


def _later(options: ModelOptions) -> Later:
    """What superoptimizes graphs with these options, one after the other."""
    for known, later in _laters:
        if known == options:
            return later
    _laters.append((options, Later(options)))
    return _laters[-1][1]


def _constants(
    graph: torch.fx.GraphModule, placeholders: Sequence[torch.fx.Node], of_modules: Sequence[bool]
) -> list[int]:
    """The positions of inputs that stay the same between calls: parameters, and tensors of modules that Dynamo says are static.

    Not those that the graph writes to, and no inference tensors, of which nobody knows whether they were written to.
    """
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    known = set(metadata.static_input_indices if metadata is not None else ())
    if len(of_modules) == len(placeholders):
        known = {k for k in known if of_modules[k]}
    written = written_inputs(graph.graph)
    found = []
    for k, n in enumerate(placeholders):
        value = n.meta.get("val")
        if isinstance(value, torch.Tensor) and n not in written and not value.is_inference():
            if k in known or isinstance(value, torch.nn.Parameter):
                found.append(k)
    return found


def _ranges(placeholders: Sequence[torch.fx.Node], known: set[str]) -> dict[str, Any]:
    """What torch knows of the dims: users say it by `torch._dynamo.mark_dynamic(x, 0, min=1, max=8)`."""
    sizes = (
        n for p in placeholders if isinstance(x := p.meta.get("val"), torch.Tensor | torch.SymInt)
        for n in (x.shape if isinstance(x, torch.Tensor) else (x,)) if isinstance(n, torch.SymInt)
    )  # fmt: skip
    first = next(sizes, None)
    ranges = {} if first is None else first.node.shape_env.var_to_range
    return from_range_constraints({s: r for s, r in ranges.items() if str(s) in known})


def _declared(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any], bounds: Mapping[str, Mapping[int, Range]]
) -> tuple[dict[str, Range], dict[int, Mapping[int, Range]]]:
    """The user's bounds by dim symbol, and by the position of an input and a dim of it; arguments of other graphs are left out.

    Raises InputError for a dim that an argument does not have.
    """
    symbols: dict[str, Range] = {}
    positions: dict[int, Mapping[int, Range]] = {}
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    for k, (n, x) in enumerate(zip(placeholders, example_inputs, strict=True)):
        dims = bounds.get(_argument(n), {})
        if not dims or not isinstance(x, torch.Tensor):
            continue
        if wrong := [d for d in dims if not 0 <= d < x.ndim]:
            raise InputError(f"bounds of {_argument(n)!r}: there is no dim {wrong[0]}; it has {x.ndim}, counted from 0")
        positions[k] = dims
        for d, bound in dims.items():
            dim = dim_of(x.shape[d])
            if dim.is_Symbol:
                symbols[dim.name] = bound
    return symbols, positions


def _argument(n: torch.fx.Node) -> str:
    """The name of the argument that an input of Dynamo's graph is: "x" for `L['x']` and `L['kwargs']['x']`."""
    source = getattr(n, "_dynamo_source", None)
    names = re.findall(r"\['(\w+)'\]$", source.name if source is not None else "")
    return names[-1] if names else ""
