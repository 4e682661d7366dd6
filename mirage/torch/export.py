"""From a model and a call to an exported program, and from that to a compiled one."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mirage import errors
from mirage.compilation import FLOAT32
from mirage.errors import UnsupportedNode
from mirage.frontends.aten.decompose import decompositions
from mirage.frontends.aten.importer import import_graph
from mirage.frontends.aten.types import NAMES
from mirage.frontends.imported import Imported
from mirage.ir.dims import symbols_of
from mirage.ir.types import HALVES
from mirage.torch.arguments import ordered
from mirage.torch.caches import caches_in, places
from mirage.torch.compiled import compiled_graph, sizes_to_tune
from mirage.torch.constant_sizes import FormulaTooLarge, LimitFormulas
from mirage.torch.guards import LEAST, Guards, Range, Shape, guards_of, hints
from mirage.torch.log import FALLBACKS, GRAPHS
from mirage.torch.program import Bounds, Layout, Program, Unflatten
from mirage.torch.weights import Weights
from mirage.torch.writes import with_writes

#: where code is that no user wrote
_NOT_THE_USERS = (*(str(Path(inspect.getfile(module)).parent) + os.sep for module in (torch, contextlib, errors)), "<")
#: operators whose results jump where their operands hardly change
_CHOICES = tuple(getattr(torch.ops.aten, name) for name in ("topk", "sort", "argsort", "argmax", "argmin"))


#: the threads in which a model is exported: one at a time, as torch keeps for all threads together whether it traces
_exporting: list[int] = []
_lock = threading.Lock()
#: what `decomposed` has imported to see whether it can be, until that is compiled
_imported: weakref.WeakKeyDictionary[torch.fx.GraphModule, Imported] = weakref.WeakKeyDictionary()


def exported_elsewhere() -> bool:
    """Whether it is in another thread that torch traces, as a model is exported there."""
    return bool(_exporting) and threading.get_ident() not in _exporting


def module_of(model: Callable[..., Any]) -> torch.nn.Module | None:
    """The module that a model is, or that it is a method of; None for any other function."""
    owner = getattr(model, "__self__", model)
    return owner if isinstance(owner, torch.nn.Module) else None


class Call(torch.nn.Module):  # type: ignore[misc]
    """A model as a module of the tensors in a call's arguments, in order; all other arguments are as in the call."""

    def __init__(self, model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = model
        #: of a method, the module whose weights it reads
        self.owner = None if isinstance(model, torch.nn.Module) else module_of(model)
        leaves, self._spec = pytree.tree_flatten((tuple(args), ordered(kwargs)))
        self._leaves = [None if isinstance(x, torch.Tensor) else x for x in leaves]
        self._places = [k for k, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        #: where the result has the caches among the arguments, `places`, and for each of its parts which tensor of the call it
        #: is, `tensors`, None if none: in an object, as torch takes attributes of modules back
        self.found = SimpleNamespace(places=(), tensors=())
        #: the numbers of a tensor and a dim whose sizes are constants in an export
        self.constants: frozenset[tuple[int, int]] = frozenset()

    def forward(self, *tensors: Any) -> Any:
        with LimitFormulas(tensors):
            return self.with_tensors(tensors)

    def with_tensors(self, tensors: Sequence[Any]) -> Any:
        """What the model gives for these tensors; with it what became of caches among the arguments that it does not give."""
        leaves = list(self._leaves)
        for k, t in zip(self._places, tensors, strict=True):
            leaves[k] = t
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        result = self.model(*args, **kwargs)
        caches = caches_in([*args, *kwargs.values()])
        self.found.places = places(caches, result)
        others = [cache for cache, place in zip(caches, self.found.places, strict=True) if not place]
        found = (result, others) if others else result
        numbers = {id(t): k for k, t in enumerate(tensors)}
        self.found.tensors = tuple(numbers.get(id(x)) for x in pytree.tree_leaves(found))
        return found


def export(call: Call, tensors: Sequence[Any], dynamic: bool = True) -> Any:
    """The exported program of a call with these tensors, every size a symbol where it can be one, and decomposed.

    Raises UnsupportedNode, which says where in the model, if torch cannot export it.
    """
    while True:
        try:
            return _exported(call, tensors, dynamic)
        except FormulaTooLarge as e:
            if e.dims <= call.constants:
                # it is of sizes that data decide
                raise UnsupportedNode(f"torch.export fails: {e}") from e
            call.constants |= e.dims
            GRAPHS.info("%s; %d sizes are constants", e, len(call.constants))


def _exported(call: Call, tensors: Sequence[Any], dynamic: bool) -> Any:
    auto, static = torch.export.Dim.AUTO, torch.export.Dim.STATIC
    dims = tuple({d: static if (k, d) in call.constants else auto for d in range(t.ndim)} for k, t in enumerate(tensors))
    shapes = (dims,) if dynamic and dims else None
    printed = io.StringIO()
    try:
        # torch prints the graph as far as it came where it fails
        with _alone(), torch.no_grad(), contextlib.redirect_stderr(printed):
            program = torch.export.export(call, tuple(tensors), dynamic_shapes=shapes, strict=False)
            return decomposed(program)
    except FormulaTooLarge:
        raise
    except Exception as e:
        FALLBACKS.debug("%s", printed.getvalue())
        raise UnsupportedNode(f"torch.export fails: {first_line(e)}{_line_of(e)}") from e


def decomposed(exported: Any) -> Any:
    """The program in operators that can be imported: itself, where nothing in it writes and each has a lowering, as torch takes
    much longer to split it, or else split into core operators.
    """
    if not any(_writes(n) for n in exported.graph.nodes):
        with contextlib.suppress(UnsupportedNode):
            _imported[exported.graph_module] = import_graph(exported.graph_module, only_native=True)
            return exported
    return exported.run_decompositions(decompositions())


def _writes(n: torch.fx.Node) -> bool:
    return isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    with _lock:
        _exporting.append(threading.get_ident())
        try:
            yield
        finally:
            _exporting.clear()


def first_line(error: BaseException) -> str:
    """An error's type and first line, without where to read more of it."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "").partition(" See https://")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _line_of(error: BaseException) -> str:
    """The last line of the user's code that an error went through."""
    found = ""
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if not code.co_filename.startswith(_NOT_THE_USERS):
            found = f" ({Path(code.co_filename).name}:{step.tb_lineno}, in {code.co_name})"
        step = step.tb_next
    return found


def widened(tensors: Sequence[Any]) -> list[Any]:
    """An example with no size of 0 or 1, which torch would take for a constant: elements are repeated, or zeros."""
    found = []
    for t in tensors:
        for dim, n in enumerate(t.shape):
            if n == 1:
                t = torch.cat([t] * LEAST, dim)
            elif n == 0:
                t = t.new_zeros([*t.shape[:dim], LEAST, *t.shape[dim + 1 :]])
        found.append(t)
    return found


def program_of(
    exported: Any,
    model: Any,
    names: Sequence[str],
    *,
    bounds: Bounds | None = None,
    order: Sequence[int] = (),
    shapes: Sequence[Shape] | None = None,
    **options: Any,
) -> Program:
    """The compiled program of an exported one, whose weights are those of `model`.

    `names` are what the tensors of a call are called, `bounds` ranges of their dims, `order` the numbers of the program's tensors
    in the order of a call, if that is another one, `shapes` those of the calls for which it is tuned, if not of the example,
    `options` as of `mirage.compile`. Raises UnsupportedNode, which lists all nodes that cannot be imported with their lines.
    """
    begun = time.perf_counter()
    signature = exported.graph_signature
    written_buffers = {*signature.buffers_to_mutate.values(), *getattr(signature, "parameters_to_mutate", {}).values()}
    weights: dict[int, tuple[str | None, Any]] = {}
    state: dict[int, tuple[str | None, Any]] = {}
    given: list[int] = []
    placeholders = [n for n in exported.graph.nodes if n.op == "placeholder"]
    for k, (spec, node) in enumerate(zip(signature.input_specs, placeholders, strict=True)):
        if spec.kind.name == "USER_INPUT":
            if isinstance(node.meta.get("val"), torch.Tensor):
                given.append(k)
            continue
        value = exported.state_dict.get(spec.target)
        value = exported.constants.get(spec.target) if value is None else value
        if not isinstance(value, torch.Tensor):
            raise UnsupportedNode(f"the model has an input of its own, {spec.target}, that is a {type(value).__name__}")
        (state if spec.target in written_buffers else weights)[k] = spec.target, value
    given = [given[k] for k in order] if order else given
    found = model.found if isinstance(model, Call) else SimpleNamespace(places=(), tensors=())
    returned = [None if k is None else placeholders[given[k]].name for k in found.tensors]
    graph_module, written = with_writes(exported, returned)
    imported = _imported.pop(graph_module, None) or import_graph(graph_module)
    guards = guards_of([placeholders[k].meta["val"] for k in given])
    begun_compilation = time.perf_counter()
    ranges = bounds_of(guards, names, bounds or {}, imported.module)
    if options.get("sizes") is None:
        sizes = guards.sizes(shapes) if shapes is not None else hints([placeholders[k].meta["val"] for k in given])
        options["sizes"] = sizes_to_tune(imported, sizes or {}, ranges)
    graph = compiled_graph(imported, tuple(weights), bounds=ranges, **options)
    seconds = {"import": begun_compilation - begun, "compile": time.perf_counter() - begun_compilation}
    random = any(_draws(n) for n in exported.graph.nodes)
    narrow = options.get("weights", FLOAT32) != FLOAT32
    values = (node.meta.get("val") for node in exported.graph.nodes)
    halves = frozenset(HALVES) & {NAMES.get(v.dtype, "") for v in values if isinstance(v, torch.Tensor)}
    chooses = any(getattr(n.target, "overloadpacket", None) in _CHOICES for n in exported.graph.nodes)
    return Program(
        graph, Layout(len(placeholders), tuple(weights), tuple(state), tuple(given), written, found.places), guards,
        Weights(model, list(weights.values())), Weights(model, list(state.values())),
        Unflatten(exported.call_spec.out_spec), tuple(names), ranges, random, narrow, halves, chooses, seconds,
    )  # fmt: skip


def _draws(n: torch.fx.Node) -> bool:
    """Whether a node draws random numbers: those that drop elements do if they are told to."""
    if not isinstance(n.target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in n.target.tags:
        return False
    defaults = {a.name: a.default_value for a in n.target._schema.arguments}
    given = {**defaults, **dict(zip(defaults, n.args, strict=False)), **n.kwargs}
    return bool(given.get("train", True) and given.get("dropout_p", given.get("p", True)))


def bounds_of(guards: Guards, names: Sequence[str], declared: Bounds, module: Any) -> dict[str, Range]:
    """The ranges of dim symbols that are known: what users declared, and what the guards say."""
    found: dict[str, Range] = {}

    def narrow(name: str, low: int, high: int | None) -> None:
        before_low, before_high = found.get(name, (0, None))
        highs = [h for h in (high, before_high) if h is not None]
        found[name] = max(low, before_low), min(highs, default=None)

    for name, dims in zip(names, guards.shapes, strict=True):
        for dim, (low, high) in declared.get(name, {}).items():
            if dim < len(dims) and dims[dim].is_Symbol:
                narrow(dims[dim].name, low, high)
    for g in guards.conditions:
        if g.left.is_Symbol and g.right.is_Integer and g.relation in ("<=", ">="):
            n = int(g.right)
            narrow(g.left.name, *((0, n) if g.relation == "<=" else (n, None)))
    main = module.functions[module.main]
    used = {s for p in main.parameters for d in getattr(p.annotation, "shape", ()) for s in symbols_of(d)}
    return {name: r for name, r in found.items() if name in used}
