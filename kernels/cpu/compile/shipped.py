"""Machine code that all kernels have in common: compiled when the package is built, so that no first kernel waits for it.

It is made for levels of the x86-64 instruction set (x86-64 psABI, section 3.1.1), and found by a hash of its source: where a
source, a header or a flag is another, and on other processors, `toolchain.compile` compiles it at first use.

`setup.py` runs this file by itself, where neither `mirage` nor what it needs is installed: the standard library alone is
imported.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_CPU = Path(__file__).parents[1]
HEADERS = _CPU / "csrc"
#: where the machine code is: a folder per level
OBJECTS = _CPU / "objects"
#: the libraries of this package, by the names that they are compiled under
LIBRARIES = {
    **{name: HEADERS / f"{name}.c" for name in ("pool", "direct", "cold", "limits", "machine", "order", "convolution", "rounds")},
    "extract": _CPU.parents[1] / "search" / "csrc" / "extract.c",
}
#: files of the micro-kernels of products, mirage_gemm_*.c
MICRO_KERNELS = ("outer", "stream", "dot")

# Not -ffast-math: it breaks the exponent arithmetic of exp.
FLAGS = (
    "-O3",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fPIC",
    "-pthread",
)
LINKED = ("-lm",)
#: the commands of C compilers
COMPILERS = ("cc", "gcc", "clang")
#: what Linux and macOS call 64-bit ARM processors
ARM = ("aarch64", "arm64")
#: what a processor of a level has, as Linux names it; the highest level comes first
LEVELS = {
    "x86-64-v4": frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    "x86-64-v3": frozenset({"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}),
}


def flags(processor: str, suffix: str, machine: str | None = None) -> tuple[str, ...]:
    """The flags that make a library (".so") or an object file (".o") for a processor, as `-march` names it, or "native".

    `machine` is the kind of the processor, by default that of this one, as `platform.machine` has it.
    """
    # clang for Apple's processors knows no -march=native; on ARM -mcpu says both what there is and what is fast
    option = "-mcpu" if processor == "native" and (machine or platform.machine()) in ARM else "-march"
    return *FLAGS, f"{option}={processor}", "-shared" if suffix == ".so" else "-c"


def micro_kernel(name: str, macros: Sequence[str]) -> str:
    """The source of the micro-kernels of one of `MICRO_KERNELS`, after these lines of definitions."""
    return "\n".join([*macros, f'#include "mirage_gemm_{name}.c"', ""])


def library_source(name: str) -> str:
    """The source of one of `LIBRARIES`."""
    return LIBRARIES[name].read_text(encoding="utf-8")


@functools.cache
def headers() -> str:
    """The files that a source may include, as one text."""
    files = sorted(HEADERS.glob("*.[ch]"))
    return "".join(f"{file.name}\n{file.read_text(encoding='utf-8')}" for file in files)


def content_key(parts: Iterable[str]) -> str:
    """A hash of texts, in their order."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:32]


def level_of(features: Iterable[str]) -> str | None:
    """The level whose machine code fits the kernels of a processor with these features; None where none does."""
    has = set(features)
    if "avx512f" in has and not LEVELS["x86-64-v4"] <= has:
        # its kernels have vectors of 64 bytes, and the machine code of the lower level has those of 32
        return None
    return next((level for level, needed in LEVELS.items() if needed <= has), None)


def cpuinfo() -> list[str]:
    """The lines in which Linux describes the first processor; none elsewhere."""
    file = Path("/proc/cpuinfo")
    return file.read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines() if file.exists() else []


@functools.cache
def level() -> str | None:
    """The level of this machine's processor; None where it has none, or no way to tell."""
    if platform.machine() != "x86_64":
        return None
    return level_of(next((line.partition(":")[2].split() for line in cpuinfo() if line.startswith("flags")), []))


def _place(source: str, level: str, suffix: str, folder: Path) -> Path:
    return folder / level / f"{content_key([source, headers(), *flags(level, suffix), *LINKED])}{suffix}"


def find(source: str, suffix: str) -> Path | None:
    """The machine code of a source for this machine, a library (".so") or an object file (".o"), if it came with the package."""
    if (own := level()) is None:
        return None
    path = _place(source, own, suffix, OBJECTS)
    return path if path.exists() else None


def build(folder: Path, levels: Iterable[str]) -> list[Path]:
    """Compile what all float32 kernels have in common into a folder, and remove what was there; the files.

    There are none where there is no C compiler, and a level has none where the compiler does not know it.
    """
    compiler = shlex.split(os.environ.get("CC", "")) or [c for c in COMPILERS if shutil.which(c)][:1]
    shutil.rmtree(folder, ignore_errors=True)
    if not compiler:
        return []
    sources = [(library_source(name), ".so") for name in LIBRARIES]
    sources += [(micro_kernel(name, ["#define MI_REAL float"]), ".o") for name in MICRO_KERNELS]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = [pool.submit(_compiled, compiler, *source, level, folder) for level in levels for source in sources]
        return [path for one in made if (path := one.result()) is not None]


def _compiled(compiler: Sequence[str], source: str, suffix: str, level: str, folder: Path) -> Path | None:
    path = _place(source, level, suffix, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [*compiler, *flags(level, suffix), f"-I{HEADERS}", "-x", "c", "-", "-o", str(path), *LINKED]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    return path if done.returncode == 0 else None
