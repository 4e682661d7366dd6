"""The C toolchain: compile source text to a shared library, cached by content, and load it.

A library lives in `<cache folder>/kernels/<name>-<key>.so`, and an object file that libraries share beside it. The key is a
hash of everything that its machine code depends on, so a file is never stale; it appears under its final name complete
or not at all, so processes may race for it and may be killed at any time.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import logging
import math
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mirage import settings
from mirage.errors import CompilerError, MirageError, NoCompilerError
from mirage.folders import build_folder, check_private, private_folder
from mirage.kernels.cpu.compile import shipped
from mirage.kernels.cpu.compile.together import waiting

MESSAGE_LINES = 20
_LOG = logging.getLogger("mirage.kernels")
# Lines of /proc/cpuinfo, on x86 and on ARM, that tell processors apart.
CPU_LINES = {"vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part"}


@dataclass(frozen=True)
class Compiler:
    """A C compiler: the command that starts it, and the text by which it identifies itself."""

    command: tuple[str, ...]
    version: str


def find_compiler() -> Compiler:
    """The C compiler that `CC` names, else the first of cc, gcc, clang and the ziglang package.

    Raises NoCompilerError if there is none, or if `CC` names one that does not run.
    """
    # the environment is the key: a process may change it between two calls
    return _find_compiler(settings.compiler(), os.environ.get("PATH", ""))


@functools.cache
def _find_compiler(chosen: tuple[str, ...], path: str) -> Compiler:
    if chosen:
        found = _identify(chosen, path)
        if found is None:
            cc = shlex.join(chosen)
            raise NoCompilerError(
                f"CC={cc!r} does not run (`{cc} --version` failed); "
                "set CC to a C compiler such as gcc or clang, or unset it"
            )
        return found
    candidates = [[c] for c in shipped.COMPILERS]
    if importlib.util.find_spec("ziglang") is not None:
        candidates.append([sys.executable, "-m", "ziglang", "cc"])
    for candidate in candidates:
        found = _identify(candidate, path)
        if found is not None:
            return found
    raise NoCompilerError(
        "no C compiler: none of cc, gcc, clang is on PATH, and the ziglang package is not installed; "
        "install gcc or clang, or `pip install ziglang`, or set CC to a compiler"
    )


def _identify(command: Sequence[str], path: str) -> Compiler | None:
    program = shutil.which(command[0], path=path)
    if program is None:
        return None
    full = (program, *command[1:])
    try:
        done = subprocess.run([*full, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Compiler(full, done.stdout) if done.returncode == 0 else None


def compile(source: str, *, name: str, parts: Sequence[str] = (), seconds: float | None = None) -> Path:
    """The shared library made of C `source`, from the cache if it was compiled before.

    `source` may include the headers of this package, such as "mirage_gemm.h". `parts` are sources that several libraries
    have in common, compiled once to object files of their own, side by side with the source. `name` starts the file name, for
    people to read. After `seconds`, the compiler is stopped; one that compiles a part goes on in the background, so that it is
    there the next time.

    Raises NoCompilerError, CompilerError if the compiler rejects the source or has no more time, or its files cannot be written,
    and UnsafeCacheError if another user could have written the cache.
    """
    try:
        return _compile(source, name, parts, seconds)
    except OSError as e:
        raise CompilerError(
            f"kernel {name!r} cannot be compiled in {settings.cache_dir()} ({e.strerror or e}); make room there, or set "
            "MIRAGE_CACHE_DIR to a folder that you can write"
        ) from e


def _compile(source: str, name: str, parts: Sequence[str], seconds: float | None) -> Path:
    """As `compile`, but for the errors of files."""
    if not parts and (ready := _shipped(source, ".so")) is not None:
        return ready
    compiler = find_compiler()
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    objects = tuple(_object(compiler, part) for part in parts)
    path = _place(compiler, source, name, ".so", objects)
    if path.exists():
        check_private(path)
        return path
    building = [_start(compiler, part) for part, place in zip(parts, objects, strict=True) if not place.exists()]
    with build_folder(path.parent) as build:
        if not building:
            # one process of the compiler, where nothing is waited for
            return _moved(_compiled(compiler, source, build, path, deadline, name, _checked(objects)), path)
        own = _compiled(compiler, source, build, path.with_suffix(".o"), deadline, name)
        for part in building:
            try:
                with waiting():
                    part.result(None if deadline == math.inf else max(deadline - time.monotonic(), 0.0))
            except TimeoutError as e:
                raise _no_time(name) from e
        library = build / path.name
        linked = [str(own), *_checked(objects), "-o", str(library), *shipped.LINKED]
        _run([*compiler.command, *_flags(".so"), *linked], deadline, name, build)
        return _moved(library, path)


def is_there(source: str, *, name: str) -> bool:
    """Whether `compile` finds the library made of a source, without parts; what it does not find is begun as by `start`."""
    if _shipped(source, ".so") is not None:
        return True
    # a folder that cannot be written is for those to tell who wait, too
    with suppress(MirageError, OSError):
        compiler = find_compiler()
        if _place(compiler, source, name, ".so").exists():
            return True
        _begin(compiler, source, lambda: compile(source, name=name))
    return False


def start(parts: Sequence[str]) -> None:
    """Begin to compile parts in the background, as whoever compiles with them will need them.

    What is wrong with a compiler is for those who wait for it to tell.
    """
    with suppress(MirageError):
        compiler = find_compiler()
        for part in parts:
            if not _object(compiler, part).exists():
                _start(compiler, part)


def _shipped(source: str, suffix: str) -> Path | None:
    """What came with the package, unless the user has flags of their own."""
    return None if settings.extra_cflags() else shipped.find(source, suffix)


def _object(compiler: Compiler, part: str) -> Path:
    """Where the object file of a part is, or will be."""
    return _shipped(part, ".o") or _place(compiler, part, "part", ".o")


#: files that threads are compiling, by compiler, source, flags and folder; one that has its file stays for a moment only
_building: dict[tuple[object, ...], Future[Path]] = {}
_building_lock = threading.Lock()


def _forget_threads() -> None:
    global _building_lock
    _building.clear()
    _building_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    # the threads are not in the child
    os.register_at_fork(after_in_child=_forget_threads)


def _start(compiler: Compiler, part: str) -> Future[Path]:
    """The object file of a part, which a thread compiles if it is not in the cache: one for all who wait for it."""

    def compile_part() -> Path:
        path = _place(compiler, part, "part", ".o")
        if not path.exists():
            with build_folder(path.parent) as build:
                _moved(_compiled(compiler, part, build, path, math.inf, "part"), path)
        return path

    return _begin(compiler, part, compile_part)


def _begin(compiler: Compiler, source: str, make: Callable[[], Path]) -> Future[Path]:
    """The file that a thread makes of a source, unless one does so already."""
    key = compiler, source, *settings.extra_cflags(), private_folder("kernels")
    with _building_lock:
        found = _building.get(key)
        if found is None:
            found = _building[key] = Future()
            threading.Thread(target=_make, args=(key, make, found), daemon=True).start()
    return found


def _make(key: tuple[object, ...], make: Callable[[], Path], result: Future[Path]) -> None:
    try:
        result.set_result(make())
    except BaseException as e:  # whoever waits raises it
        result.set_exception(e)
    with _building_lock:
        _building.pop(key, None)


def _flags(suffix: str) -> tuple[str, ...]:
    return *shipped.flags("native", suffix), *settings.extra_cflags()


def _place(compiler: Compiler, source: str, name: str, suffix: str, objects: Sequence[Path] = ()) -> Path:
    """Where the object file of a source, or its library with these objects, is kept."""
    stem = re.sub(r"\W", "_", name, flags=re.ASCII)
    key = _key(source, compiler, (*_flags(suffix), *(o.name for o in objects)))
    return private_folder("kernels") / f"{stem}-{key}{suffix}"


def _compiled(
    compiler: Compiler, source: str, build: Path, path: Path, deadline: float, name: str, linked: Sequence[str] = ()
) -> Path:
    """The file that the compiler makes of a source, in the folder `build`: a library, with the object files `linked`, or an
    object file, as `path` will be.
    """
    c_file, result = build / path.with_suffix(".c").name, build / path.name
    c_file.write_text(source, encoding="utf-8")
    libraries = shipped.LINKED if path.suffix == ".so" else ()
    sources = [str(c_file), *linked, "-o", str(result), *libraries]
    command = [*compiler.command, *_flags(path.suffix), f"-I{shipped.HEADERS}", *sources]
    _run(command, deadline, name, build)
    return result


def _checked(objects: Sequence[Path]) -> list[str]:
    """The names of object files, none of which another user could have written."""
    for place in objects:
        _check(place)
    return [str(place) for place in objects]


def _moved(result: Path, path: Path) -> Path:
    """The file under its final name, complete on the disk before it has that."""
    result.chmod(0o700)
    with result.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(result, path)
    return path


def _run(command: Sequence[str], deadline: float, name: str, folder: Path) -> None:
    """Run a compiler, which is stopped at the deadline with the processes that it started; raises CompilerError.

    Its temporary files are in the folder: one that is stopped does not remove them.
    """
    limited = deadline < math.inf
    begun = time.monotonic()
    # a session of its own, whose processes can be stopped together
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=limited,
        env={**os.environ, "TMPDIR": str(folder)},
    ) as process:
        try:
            with waiting():
                _, errors = process.communicate(timeout=max(deadline - time.monotonic(), 0.0) if limited else None)
        except BaseException as e:
            if limited:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            if isinstance(e, subprocess.TimeoutExpired):
                raise _no_time(name) from e
            raise
    if process.returncode != 0:
        message = "\n".join(errors.strip().splitlines()[:MESSAGE_LINES])
        raise CompilerError(
            f"the C compiler rejected kernel {name!r} (exit status {process.returncode})\n{shlex.join(command)}\n{message}"
        )
    seconds = time.monotonic() - begun
    _LOG.debug("%s: compiled in %.2f s", name, seconds, extra={"kernel": name, "seconds": round(seconds, 3)})


def _no_time(name: str) -> CompilerError:
    return CompilerError(f"the C compiler had no more time for kernel {name!r}; give a larger budget")


def load(path: Path) -> ctypes.CDLL:
    """The shared library at `path`, loaded once per process.

    Raises UnsafeCacheError if another user owns or can write the file or its folder, and CompilerError if it
    does not load.
    """
    _check(path)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CompilerError(f"cannot load {path}: {error}; delete the file, and it is compiled again") from error


def library(name: str) -> ctypes.CDLL:
    """The library of this package that has this name (`shipped.LIBRARIES`); raises as `compile` and `load` do."""
    return load(compile(shipped.library_source(name), name=name))


def _check(path: Path) -> None:
    """Machine code is run: nobody else may have had a chance to write it. What came with the package is as safe as its Python."""
    if not path.is_relative_to(shipped.OBJECTS):
        check_private(path.parent)
        check_private(path)


def _key(source: str, compiler: Compiler, flags: tuple[str, ...]) -> str:
    own = *compiler.command, compiler.version, *flags, *shipped.LINKED, _cpu()
    return shipped.content_key([source, shipped.headers(), *own])


@functools.cache
def _cpu() -> str:
    """What `-march=native` depends on: a cache folder may be shared by unlike machines."""
    lines = [platform.system(), platform.machine(), platform.processor()]
    lines += [line for line in shipped.cpuinfo() if line.split("\t")[0].strip() in CPU_LINES]
    return "\n".join(lines)
