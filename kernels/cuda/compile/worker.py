"""Compiles kernels in a process of its own: a list of requests on stdin, a folder of results for each.

A script that imports nothing of the package, so that it starts quickly, and that a crash of LLVM cannot take the caller with
it. A request is a JSON object: `source` (path of the Python file), `function`, `signature` (argument -> type), `constexprs`,
`divisible` (arguments that are multiples of 16), `num_warps`, `num_stages`, `arch` (such as 90) and `folder`. The folder gets
`kernel.cubin`, `kernel.ptx`, and then `result.json`: {"metadata": ...} or {"error": text}. A request that fails ends no other.
One with a `script` is for another compiler than Triton: that script's `compile_one` gets it, and `with_usage`.
"""

import contextlib
import importlib.util
import io
import json
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: what the compiled kernel's metadata tells that a launch needs
METADATA = (
    "name",
    "shared",
    "num_warps",
    "num_ctas",
    "global_scratch_size",
    "global_scratch_align",
    "profile_scratch_size",
    "profile_scratch_align",
)
#: what ptxas -v says of every function of a kernel
REGISTERS = re.compile(r"Used (\d+) registers")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
#: registers that a thread can have; the level of ptxas that uses them most freely; spills beyond which it does not suffice
MOST_REGISTERS, LEVEL, FEW_BYTES = 255, 10, 1024
#: what errors for terminals are printed with
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
#: lines of an error, and of each of its causes, that are passed on
LINES = 20


def load(path: str) -> Any:
    """The module of a file."""
    spec = importlib.util.spec_from_file_location("mirage_generated", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_one(request: dict[str, Any]) -> dict[str, Any]:
    """The metadata of the kernel, whose cubin and PTX are in the folder then."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime import cache

    # a hash of all of Triton, 400 MB, which takes half of the time of a small kernel: for the keys of its own cache, from which
    # nothing is read
    cache.triton_key = lambda: "mirage"
    function = getattr(load(request["source"]), request["function"])
    names, constexprs = list(function.arg_names), request["constexprs"]
    given = {**request["signature"], **dict.fromkeys(constexprs, "constexpr")}
    if set(names) != set(given):
        raise ValueError(f"the function takes {names}, but {list(given)} are given")
    attrs = {(names.index(name),): [["tt.divisibility", 16]] for name in request["divisible"]}
    source = ASTSource(function, {name: given[name] for name in names}, constexprs, attrs)
    options = {"num_warps": request["num_warps"], "num_stages": request["num_stages"]}
    target = GPUTarget("cuda", request["arch"], 32)
    compiled, usage = with_usage(lambda: triton.compile(source, target=target, options=options))
    if 0 < usage["spill_bytes"] <= FEW_BYTES and usage["registers"] < MOST_REGISTERS:
        # ptxas spills a little to have more blocks at once, where it could use more registers instead
        more = {**options, "ptx_options": f"--register-usage-level={LEVEL}"}
        other, other_usage = with_usage(lambda: triton.compile(source, target=target, options=more))
        if other_usage["spill_bytes"] < usage["spill_bytes"]:
            compiled, usage = other, other_usage
    folder = Path(request["folder"])
    (folder / "kernel.cubin").write_bytes(compiled.asm["cubin"])
    (folder / "kernel.ptx").write_text(compiled.asm["ptx"], encoding="utf-8")
    return {**{key: getattr(compiled.metadata, key) for key in METADATA}, **usage}


def with_usage(compile: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    """What is compiled, and the registers and spills that ptxas reports."""
    log = io.StringIO()
    # Triton prints it, and CUTLASS logs it
    with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        compiled = compile()
    registers = [int(n) for n in REGISTERS.findall(log.getvalue())]
    spills = [int(stores) + int(loads) for stores, loads in SPILLS.findall(log.getvalue())]
    if not registers or not spills:
        raise ValueError(f"ptxas reports no registers: {log.getvalue()!r}")
    return compiled, {"registers": max(registers), "spill_bytes": sum(spills)}


def describe(error: BaseException) -> str:
    """An error with its causes: Triton's own say where, and what caused them says why."""
    text: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        text += COLOURS.sub("", "".join(traceback.format_exception_only(cause))).strip().splitlines()[:LINES]
        cause = cause.__cause__
    return "\n".join(text)


def main() -> None:
    """Serve the requests on stdin, in order."""
    for request in json.load(sys.stdin):
        try:
            own = load(request["script"]).compile_one if "script" in request else None
            result: dict[str, Any] = {"metadata": own(request, with_usage) if own else compile_one(request)}
        except Exception as error:
            result = {"error": describe(error)}
        file = Path(request["folder"], "result.json")
        # the file tells that the others are complete
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(result), encoding="utf-8")
        partial.rename(file)


if __name__ == "__main__":
    main()
