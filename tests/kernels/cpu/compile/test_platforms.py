"""Other platforms than this machine's: the flags that are chosen there, and that the C of the package compiles for them."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from mirage.kernels.cpu.compile import shipped, toolchain

GOLDEN = Path(__file__).parents[3] / "golden"
#: targets as zig, whose C compiler has the headers of all of them, names them
TARGETS = ("aarch64-macos", "x86_64-macos", "aarch64-linux-gnu", "x86_64-linux-gnu")


@pytest.mark.parametrize(
    ("machine", "processor", "wanted"),
    [
        ("x86_64", "native", "-march=native"),
        ("AMD64", "native", "-march=native"),
        ("arm64", "native", "-mcpu=native"),
        ("aarch64", "native", "-mcpu=native"),
        ("x86_64", "x86-64-v3", "-march=x86-64-v3"),
        ("aarch64", "armv8.2-a", "-march=armv8.2-a"),
    ],
)
def test_the_flag_of_the_processor_is_one_that_its_compilers_know(machine: str, processor: str, wanted: str) -> None:
    for suffix, kind in ((".so", "-shared"), (".o", "-c")):
        flags = shipped.flags(processor, suffix, machine)
        assert flags == (*shipped.FLAGS, wanted, kind)


@pytest.mark.parametrize("machine", ["arm64", "x86_64"])
def test_a_mac_is_asked_for_its_own_flags_and_ships_no_machine_code(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    # Linux alone has it
    monkeypatch.setattr(shipped, "cpuinfo", list)
    shipped.level.cache_clear()
    try:
        assert shipped.level() is None
        assert shipped.find(shipped.library_source("pool"), ".so") is None
    finally:
        shipped.level.cache_clear()
    monkeypatch.setenv("MIRAGE_CFLAGS", "-O1")
    native = "-mcpu=native" if machine == "arm64" else "-march=native"
    assert toolchain._flags(".so") == (*shipped.FLAGS, native, "-shared", "-O1")


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_libraries_micro_kernels_and_generated_kernels_compile_for_other_platforms(target: str, tmp_path: Path) -> None:
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed; pip install ziglang")
    sources = {name: shipped.library_source(name) for name in shipped.LIBRARIES}
    sources |= {name: shipped.micro_kernel(name, ["#define MI_REAL float"]) for name in shipped.MICRO_KERNELS}
    sources |= {p.stem: p.read_text(encoding="utf-8") for p in GOLDEN.glob("*.c")}
    assert {"pool", "stream", "flash_decoding"} <= set(sources)
    # zig's own name for a processor, in place of this machine's
    own = [f for f in shipped.flags("native", ".o") if "native" not in f]
    for name, source in sources.items():
        command = [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            "-target",
            target,
            *own,
            "-Wall",
            "-Werror",
            "-Wno-unused",
            "-Wno-unknown-pragmas",
        ]
        command += [f"-I{shipped.HEADERS}", "-x", "c", "-", "-o", str(tmp_path / f"{name}.o")]
        done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{name} for {target}: {done.stderr[-2000:]}"
