"""The generated choice among versions: its C, and that it decides as the tree does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage.errors import UnsafeCacheError
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.launch import choose as choosing
from mirage.kernels.cpu.launch.choose import choose_source, compile_tree
from mirage.kernels.decision import Split, Tree, decide
from tests.kernels.trees import SYMBOLS, numbers, trees

TREE = Split(
    ("b",),
    8,
    Split(("b", "t"), 92681, 0, Split(("t",), 2**53, 1, 2)),
    Split(("s",), 64, 3, Split(("t", "s"), 1, 4, 5)),
)


def test_source(golden: Callable[[str, str], None]) -> None:
    golden("choose.c", choose_source("attention", TREE, SYMBOLS))


def test_names_of_dims_and_programs_are_not_code() -> None:
    source = choose_source("*/ int x; /*", Split(("größe",), 4, 0, 1), ["größe"])
    assert source.isascii()
    assert "*/ int x" not in source
    assert "sizes[0] <= 4L" in source


@settings(max_examples=12)
@given(trees(), st.lists(st.tuples(numbers, numbers, numbers), min_size=20, max_size=40))
def test_c_decides_as_the_tree(tree: Tree, values: list[tuple[int, ...]]) -> None:
    choose = compile_tree("random", tree, SYMBOLS)
    for v in values:
        sizes = dict(zip(SYMBOLS, v, strict=True))
        assert choose(sizes) == decide(tree, sizes)


def test_c_decides_as_the_tree_at_and_beside_thresholds() -> None:
    choose = compile_tree("attention", TREE, SYMBOLS)
    near = [1, 2, 7, 8, 9, 63, 64, 65, 304, 305, 11585, 11586, 92680, 92681, 92682, 2**53 - 1, 2**53, 2**53 + 1, 2**62]
    for b in near:
        for s in (1, 64, 65, 2**62):
            for t in near:
                sizes = {"t": t, "b": b, "s": s}
                assert choose(sizes) == decide(TREE, sizes), sizes


def test_without_a_compiler_the_tree_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    toolchain._find_compiler.cache_clear()
    choose = compile_tree("attention", TREE, SYMBOLS)
    assert [choose({"b": b, "s": 1, "t": 1}) for b in (1, 9)] == [0, 3]


def test_other_errors_are_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(UnsafeCacheError):
        compile_tree("attention", TREE, SYMBOLS)


def test_one_version_needs_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "compile", None)
    assert compile_tree("fixed", 0, ())({}) == 0


def test_a_choice_is_compiled_code_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = compile_tree("attention", TREE, SYMBOLS)
    for name in ("decide", "toolchain"):
        monkeypatch.setattr(choosing, name, None)
    assert choose({"b": 9, "s": 65, "t": 2}) == 5
