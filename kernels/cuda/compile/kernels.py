"""Kernels compiled ahead of time, without a GPU, and cached by content.

A compiled kernel is a folder `<cache folder>/cuda/<function>-<key>` with `kernel.cubin`, `kernel.ptx` and `kernel.json`. The
key is a hash of everything that the machine code depends on, so a folder is never stale; it appears under its final name
complete or not at all, so processes may race for it and may be killed at any time. A hit neither compiles nor imports the
compiler. That runs in processes of its own (`worker.py`), so a crash of LLVM is an error and no end of the caller.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from mirage.errors import CompilerError, ScheduleError
from mirage.folders import build_folder, check_private, private_folder, write_whole
from mirage.kernels.cuda.device import CudaDevice
from mirage.settings import search_workers

WORKER = Path(__file__).with_name("worker.py")
#: seconds after which a kernel that is still compiling is given up
LIMIT_S = 300.0

#: the only variables of the environment that the compiler sees: Triton's and LLVM's own would change the code
_ENVIRONMENT = ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "LC_ALL", "VIRTUAL_ENV")
_CUBIN, _PTX, _META = "kernel.cubin", "kernel.ptx", "kernel.json"


class Compilable(Protocol):
    """A kernel to compile, under its name; `compiler` says by what."""

    @property
    def function(self) -> str: ...

    @property
    def compiler(self) -> str: ...

    def key(self) -> str:
        """The hash of all that the machine code depends on; raises NoCompilerError without the compiler that this takes."""

    def job(self) -> dict[str, Any]:
        """What `WORKER` is told, in JSON values: it leaves the cubin and the rest in a folder that is added."""


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel's machine code, and what a launch needs to know.

    `name` is that of the function in the cubin, `shared` the bytes of (dynamic) shared memory per block, which has `num_warps`
    warps of 32 threads; `num_ctas` blocks are a cluster. `global_scratch_size` and `profile_scratch_size` are bytes of device
    memory per block, aligned so many bytes, whose addresses are the last two arguments. `registers` are those of one thread,
    `spill_bytes` what one thread stores to and loads from local memory since they do not suffice, as ptxas reports them.
    """

    folder: Path
    name: str
    shared: int
    num_warps: int
    num_ctas: int
    global_scratch_size: int
    global_scratch_align: int
    profile_scratch_size: int
    profile_scratch_align: int
    registers: int
    spill_bytes: int

    @property
    def cubin(self) -> Path:
        """The file of machine code.

        Raises UnsafeCacheError if another user could have written it.
        """
        check_private(self.folder)
        check_private(self.folder / _CUBIN)
        return self.folder / _CUBIN

    @property
    def ptx(self) -> str:
        """The PTX that the machine code was made of."""
        return (self.folder / _PTX).read_text(encoding="utf-8")


_NUMBERS = tuple(f.name for f in fields(CompiledKernel) if f.name not in ("folder", "name"))


def checked(results: Sequence[CompiledKernel | CompilerError], device: CudaDevice) -> tuple[CompiledKernel, ...]:
    """These kernels; raises the first error among them, and ScheduleError where one does not fit the device."""
    kernels = []
    for compiled in results:
        if isinstance(compiled, CompilerError):
            raise compiled
        check_fits(compiled, device)
        kernels.append(compiled)
    return tuple(kernels)


def check_fits(kernel: CompiledKernel, device: CudaDevice) -> None:
    """Raises ScheduleError if a block of the kernel needs more shared memory than one can have on the device."""
    if kernel.shared > device.block_shared_bytes:
        raise ScheduleError(
            f"kernel {kernel.name}: a block needs {kernel.shared} bytes of shared memory, and {device.name} ({device.arch}) has "
            f"{device.block_shared_bytes} for one; choose smaller tiles or fewer stages"
        )


def compile_all(requests: Sequence[Compilable]) -> list[CompiledKernel | CompilerError]:
    """The compiled kernel of each request, or why it was rejected; those that are not cached are compiled side by side.

    Raises NoCompilerError without the compiler, UnsafeCacheError if another user could have written the cache.
    """
    folder = private_folder("cuda")
    paths = [folder / f"{r.function[:40]}-{r.key()}" for r in requests]
    found = {path: _load(path) for path in paths}
    missing = {path: r for path, r in zip(paths, requests, strict=True) if found[path] is None}
    errors = _build(folder, missing) if missing else {}
    results: list[CompiledKernel | CompilerError] = []
    for path, r in zip(paths, requests, strict=True):
        result = errors.get(path) or found[path] or _load(path)
        results.append(
            result or CompilerError(f"kernel {r.function!r}: {path} was damaged while it was written; try again")
        )
    return results


def _load(path: Path) -> CompiledKernel | None:
    """The compiled kernel in a folder; None where it is missing, or a file of it is damaged."""
    try:
        for file in (path, path / _META, path / _CUBIN, path / _PTX):
            check_private(file)
        meta = json.loads((path / _META).read_text(encoding="utf-8"))
        if not isinstance(meta, dict) or meta.get("digest") != _digest(path):
            return None
        if not isinstance(meta.get("name"), str) or not all(type(meta.get(k)) is int for k in _NUMBERS):
            return None
        return CompiledKernel(folder=path, name=meta["name"], **{k: meta[k] for k in _NUMBERS})
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def _digest(path: Path) -> str:
    return hashlib.sha256((path / _CUBIN).read_bytes() + (path / _PTX).read_bytes()).hexdigest()


def _build(folder: Path, missing: Mapping[Path, Compilable]) -> dict[Path, CompilerError]:
    """Compile kernels and move them to their folders; why some were rejected."""
    with build_folder(folder) as build:
        jobs = []
        for i, r in enumerate(missing.values()):
            own = build / str(i)
            own.mkdir(mode=0o700)
            jobs.append(r.job() | {"folder": str(own)})
        count = min(search_workers(), len(jobs))
        with ThreadPoolExecutor(count) as threads:
            list(threads.map(lambda k: _work(jobs[k::count], build / f"scratch{k}"), range(count)))
        errors: dict[Path, CompilerError] = {}
        for (path, r), job in zip(missing.items(), jobs, strict=True):
            try:
                _publish(Path(job["folder"]), path, r)
            except CompilerError as error:
                errors[path] = error
        return errors


def _work(jobs: list[dict[str, Any]], scratch: Path) -> None:
    """Have a process compile these; one that it does not survive gets the error, and the others another process."""
    environment = {k: os.environ[k] for k in _ENVIRONMENT if k in os.environ}
    environment |= {
        "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path),
        "TRITON_CACHE_DIR": str(scratch),
        # registers and spills are read from it
        "TRITON_DUMP_PTXAS_LOG": "1",
        # equal functions of two sources would come from Triton's own cache, without that log
        "TRITON_ALWAYS_COMPILE": "1",
        "CUTE_DSL_DISABLE_FILE_CACHING": "1",
    }
    while jobs:
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-B", str(WORKER)],
                input=json.dumps(jobs),
                capture_output=True,
                text=True,
                errors="replace",
                env=environment,
                check=False,
                timeout=LIMIT_S * len(jobs),
            )
            end = f"the compiler ended with status {done.returncode}\n{done.stderr.strip()[-2000:]}"
        except subprocess.TimeoutExpired:
            end = f"the compiler did not finish within {LIMIT_S:.0f} s"
        jobs = [job for job in jobs if not Path(job["folder"], "result.json").exists()]
        if jobs:
            write_whole(Path(jobs[0]["folder"], "result.json"), json.dumps({"error": end}))
            jobs = jobs[1:]


def _publish(built: Path, path: Path, request: Compilable) -> None:
    """Move what was compiled to its place; raises CompilerError if it was rejected."""
    result = json.loads((built / "result.json").read_text(encoding="utf-8"))
    if "error" in result:
        raise CompilerError(f"{request.compiler} rejected kernel {request.function!r}\n{result['error']}")
    (built / "result.json").unlink()
    (built / _META).write_text(json.dumps(result["metadata"] | {"digest": _digest(built)}, indent=1), encoding="utf-8")
    for file in built.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    if not _moved(built, path) and _load(path) is None:
        # what is there is damaged
        _moved(path, built.with_suffix(".damaged"))
        _moved(built, path)


def _moved(source: Path, to: Path) -> bool:
    """Whether a folder could be moved: not where there is one, which another process put there."""
    try:
        source.rename(to)
    except OSError:
        return False
    return True
