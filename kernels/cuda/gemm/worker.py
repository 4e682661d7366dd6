"""Compiles CUTLASS kernels in a process of its own: a list of requests on stdin, a folder of results for each.

As `compile/worker.py` does for Triton, and like it a script that imports nothing of the package. A request is a JSON object:
`gemm` (`Gemm.to_json`), `kernel` (path of `kernel.py`), `arch` (such as "sm_90a"), `shared` and `num_warps` (which the metadata
repeat) and `folder`. The folder gets `kernel.cubin`, `kernel.ptx`, and then `result.json`: {"metadata": ...} or {"error": text}.
"""

import contextlib
import importlib.util
import io
import json
import os
import re
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

REGISTERS = re.compile(r"Used (\d+) registers")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
ENTRY = re.compile(r"\.visible \.entry (\w+)")
#: the DSL prints its errors for terminals
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
#: lines of an error that are passed on
LINES = 20


def compile_one(module: Any, request: dict[str, Any]) -> dict[str, Any]:
    """The metadata of the kernel, whose cubin and PTX are in the folder then."""
    log = io.StringIO()
    folder = Path(request["folder"])
    with tempfile.TemporaryDirectory(dir=folder) as dump:
        with contextlib.redirect_stderr(log):
            module.compile_kernel(request["gemm"], request["arch"], dump)
        (cubin,), (ptx,) = Path(dump).glob("*.cubin"), Path(dump).glob("*.ptx")
        cubin.rename(folder / "kernel.cubin")
        ptx.rename(folder / "kernel.ptx")
    entries = ENTRY.findall((folder / "kernel.ptx").read_text(encoding="utf-8"))
    registers, spills = REGISTERS.findall(log.getvalue()), SPILLS.findall(log.getvalue())
    if len(entries) != 1 or len(registers) != 1 or len(spills) != 1:
        raise ValueError(f"kernels {entries}, and ptxas says {log.getvalue()!r}")
    return {
        "name": entries[0],
        "shared": request["shared"],
        "num_warps": request["num_warps"],
        "num_ctas": 1,
        "global_scratch_size": 0,
        "global_scratch_align": 1,
        "profile_scratch_size": 0,
        "profile_scratch_align": 1,
        "registers": int(registers[0]),
        "spill_bytes": sum(map(int, spills[0])),
    }


def main() -> None:
    """Serve the requests on stdin, in order."""
    requests = json.load(sys.stdin)
    # each kernel is cached by us
    os.environ["CUTE_DSL_DISABLE_FILE_CACHING"] = "1"
    for request in requests:
        try:
            spec = importlib.util.spec_from_file_location("mirage_cutlass_kernel", request["kernel"])
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            result: dict[str, Any] = {"metadata": compile_one(module, request)}
        except Exception as error:
            lines = COLOURS.sub("", "".join(traceback.format_exception_only(error))).strip().splitlines()
            result = {"error": "\n".join(lines[:LINES])}
        file = Path(request["folder"], "result.json")
        # the file tells that the others are complete
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(result), encoding="utf-8")
        partial.rename(file)


if __name__ == "__main__":
    main()
