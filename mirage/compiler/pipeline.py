"""The fixed order of the passes (Relax, section 4.7), with dumps after those that `MIRAGE_PRINT_AFTER` names."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence

from mirage.compiler.context import Context
from mirage.errors import SettingError
from mirage.ir.graph.nodes import Module
from mirage.settings import print_after

_LOG = logging.getLogger("mirage.compiler")
#: modules after the passes that `MIRAGE_PRINT_AFTER` names, which this logger prints
_PASSES = logging.getLogger("mirage.compiler.passes")

#: a pass: the module after it
Pass = Callable[[Module, Context], Module]


def pass_name(p: Pass) -> str:
    """The name of a pass: that of its file."""
    return p.__module__.rpartition(".")[2]


def run_passes(
    module: Module,
    context: Context,
    passes: Sequence[Pass],
    *,
    check: Callable[[Module], None] | None = None,
) -> Module:
    """The module after all passes, in order; `check`, where given, sees it after each. It is logged after those that
    `context.printed` names.
    """
    for p in passes:
        start = time.perf_counter()
        module = p(module, context)
        name = pass_name(p)
        spent = context.report.seconds
        seconds = time.perf_counter() - start
        spent[name] = spent.get(name, 0.0) + seconds
        _LOG.debug("%s: %.3f s", name, seconds, extra={"pass": name, "seconds": seconds})
        if name in context.printed:
            _PASSES.info("# after %s\n%s", name, module, extra={"pass": name})
        if check is not None:
            check(module)
    return module


def printed(passes: Sequence[Pass]) -> Collection[str]:
    """Names of the passes after which `MIRAGE_PRINT_AFTER` wants to see the module.

    Raises SettingError where it names no pass.
    """
    names, wanted = [pass_name(p) for p in passes], print_after()
    if wanted == ("all",):
        return names
    for name in wanted:
        if name not in names:
            raise SettingError(
                f"MIRAGE_PRINT_AFTER={','.join(wanted)}: there is no pass {name!r}; "
                f"the passes are {', '.join(dict.fromkeys(names))}"
            )
    return wanted
