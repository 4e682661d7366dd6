"""What all kernels share is compiled before it is needed, and a compiler that is not there is told where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage.errors import NoCompilerError
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.emit.matmul import product_parts
from mirage.kernels.cpu.launch import shared


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(folder))
    return folder


def finish() -> None:
    """Wait for all that is being compiled in the background."""
    for result in list(toolchain._building.values()):
        result.result(600)


@pytest.mark.parametrize("products", [False, True])
def test_products_are_compiled_where_there_are_some(
    cache: Path, products: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "LIBRARIES", ())
    shared.prepare("float32", products=products)
    finish()
    objects = list(cache.rglob("part-*.o"))
    assert len(objects) == (len(product_parts(["float32"])) if products else 0)
    if products:
        before = {o: o.stat().st_mtime_ns for o in objects}
        path = toolchain.compile("int f(void) { return 3; }", name="f", parts=product_parts(["float32"]))
        assert toolchain.load(path).f() == 3
        assert {o: o.stat().st_mtime_ns for o in cache.rglob("part-*.o")} == before


def test_half_precision_needs_the_products_that_it_calls() -> None:
    single, half = product_parts(["float32"]), product_parts(["float16"])
    assert set(half) > {part for part in single}
    assert product_parts(["float32"], ["dot"]) == (single[-1],)
    assert product_parts(["float16"], ["dot"]) == half
    assert product_parts(["float64"], []) == ()


def test_without_a_compiler_nothing_is_raised_before_it_is_needed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    shared.prepare("float32", products=True)
    with pytest.raises(NoCompilerError):
        toolchain.compile("int f(void) { return 3; }", name="f")
