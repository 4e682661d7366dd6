"""The shapes of nested values (torch's pytrees) as JSON, from which no class is imported."""

from __future__ import annotations

import json
from typing import Any

from torch.utils import _pytree as pytree

from mirage.errors import FormatError, InputError


def spec_to_json(spec: Any) -> Any:
    """A tree spec as JSON values; raises InputError for one with a class that is registered without a name."""
    try:
        return json.loads(pytree.treespec_dumps(spec))[1]
    except (NotImplementedError, TypeError, ValueError) as e:
        raise InputError(f"a result or argument of the model cannot be saved: {e}") from None


def spec_from_json(data: Any) -> Any:
    """The tree spec; a class is found by the name under which it is registered in this process, others become dicts.

    Raises FormatError for anything else than `spec_to_json` gave.
    """
    if not isinstance(data, dict) or not isinstance(data.get("children_spec"), list):
        raise FormatError("a nested value that cannot be read")
    name, children = data.get("type"), [spec_from_json(c) for c in data["children_spec"]]
    if name is None:
        if children:
            raise FormatError("a nested value that cannot be read")
        return pytree.tree_flatten(0)[1]
    context: Any = data.get("context")
    try:
        kind = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name)
        node = pytree.SUPPORTED_SERIALIZED_TYPES.get(kind)
        if node is None or node.from_dumpable_context is None:
            context = json.loads(context)
        elif name == "collections.namedtuple":
            kind, context = _named(context, node)
        else:
            kind = None
    except (TypeError, ValueError) as e:
        raise FormatError(f"a nested value of {name!r} that cannot be read: {e}") from None
    if kind is None:
        keys = context if isinstance(context, list) and len(context) == len(children) else range(len(children))
        kind, context = dict, [str(k) for k in keys]
    # others would be given attributes, or called, with what the file says
    if (kind in (list, tuple) and context is not None) or (kind not in (list, tuple) and not _is_keys(context, children)):
        raise FormatError(f"a nested value of {name!r} whose parts have no names")
    return pytree.TreeSpec(kind, context, children)


def _named(context: Any, node: Any) -> tuple[Any, Any]:
    """The kind and context of a named tuple; no kind where its class is not registered."""
    if context not in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
        return None, None
    return pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE["collections.namedtuple"], node.from_dumpable_context(context)


def _is_keys(context: Any, children: list[Any]) -> bool:
    if isinstance(context, type) and issubclass(context, tuple):
        return len(getattr(context, "_fields", ())) == len(children)
    return isinstance(context, list) and len(context) == len(children) and all(isinstance(k, str | int) for k in context)
