"""Machine code that comes with the package: found by its content, used as what is compiled here would be."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path

import pytest

from mirage.errors import NoCompilerError
from mirage.kernels.cpu.compile import shipped, toolchain
from mirage.kernels.cpu.emit.matmul import product_parts

V3 = ["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"]
V4 = [*V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and no flags of the user."""
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("MIRAGE_CFLAGS")
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def machine_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a build makes for this machine."""
    if (level := shipped.level()) is None:
        pytest.skip("no machine code is shipped for this processor")
    folder = tmp_path_factory.mktemp("objects")
    assert len(shipped.build(folder, [level])) == len(shipped.LIBRARIES) + len(shipped.MICRO_KERNELS)
    return folder


@pytest.mark.parametrize(
    ("features", "level"),
    [
        (V4, "x86-64-v4"),
        ([*V4, "avx512_bf16"], "x86-64-v4"),
        (V3, "x86-64-v3"),
        (V3[1:], None),
        ([*V3, "avx512f"], None),  # vectors of 64 bytes, without the rest of the level
        ([], None),
    ],
)
def test_a_level_has_the_vectors_of_the_processor(features: Iterable[str], level: str | None) -> None:
    assert shipped.level_of(features) == level


def test_a_kernel_is_linked_with_shipped_products(
    cache: Path, machine_code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "OBJECTS", machine_code)
    source = """
        #define MI_REAL float
        #include "mirage_gemm.h"
        void f(const float *x, const float *y, float *o) { mi_gemm_outer(1, 2, 1, x, 2, 1, y, 1, o, 1, 0); }
    """
    path = toolchain.compile(source, name="f", parts=product_parts(["float32"]))
    assert [p.suffix for p in (cache / "kernels").iterdir()] == [".so"], "no part was compiled"
    x, y, o = (ctypes.c_float * 2)(2, 3), (ctypes.c_float * 2)(5, 7), (ctypes.c_float * 1)()
    toolchain.load(path).f(x, y, o)
    assert o[0] == 31


def test_a_shipped_library_needs_no_compiler(cache: Path, machine_code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "OBJECTS", machine_code)
    monkeypatch.setenv("CC", "/nowhere/cc")
    for name in shipped.LIBRARIES:
        toolchain.library(name)
    assert not cache.exists()


def test_another_source_header_or_flag_is_compiled(
    cache: Path, machine_code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "OBJECTS", machine_code)
    source = shipped.library_source("pool")
    monkeypatch.setenv("CC", "/nowhere/cc")
    with pytest.raises(NoCompilerError):
        toolchain.compile(source + "\n", name="pool")
    with monkeypatch.context() as patch, pytest.raises(NoCompilerError):
        patch.setenv("MIRAGE_CFLAGS", "-O1")
        toolchain.compile(source, name="pool")
    with monkeypatch.context() as patch, pytest.raises(NoCompilerError):
        patch.setattr(shipped, "headers", lambda: "other headers")
        toolchain.compile(source, name="pool")
    with monkeypatch.context() as patch, pytest.raises(NoCompilerError):
        patch.setattr(shipped, "level", lambda: None)
        toolchain.compile(source, name="pool")


def test_a_build_without_a_compiler_ships_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shipped.build(tmp_path / "objects", ["x86-64-v3"]) == []


def test_a_build_replaces_what_was_there(tmp_path: Path) -> None:
    stale = tmp_path / "objects" / "x86-64-v3" / "stale.so"
    stale.parent.mkdir(parents=True)
    stale.touch()
    assert shipped.build(tmp_path / "objects", ["no-such-level"]) == []
    assert not stale.exists()
