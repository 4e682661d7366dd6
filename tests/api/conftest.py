"""The command line as a function, which tests of its commands share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirage import cli, cli_shared
from mirage.ir.program import ProgramBuilder
from mirage.ir.types import tensor
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.mugraph.degree import analyze
from tests.api.small import Run, limit_tuning
from tests.kernels.kernels import single_kernel, tiles


@pytest.fixture(scope="session", autouse=True)
def micro_kernels(cache_dir: Path) -> None:
    """The micro-kernels of all types, compiled: that takes seconds, which tests with small budgets do not have."""
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        b = ProgramBuilder("product")
        operands = [b.input(name, tensor("m", "m", dtype=dtype)) for name in "xy"]
        graph = single_kernel(b.finish([b.op("matmul", *operands)]))
        CpuExecutable(graph, tiles(graph, 4), analyze(graph))


@pytest.fixture(scope="module", autouse=True)
def few_kernels() -> Iterator[None]:
    """What ends tuning is a number of kernels and of sizes, on every machine; races are short."""
    with pytest.MonkeyPatch.context() as patch:
        limit_tuning(patch.setattr)
        yield


@pytest.fixture
def own_cache(tmp_path: Path, cache_dir: Path) -> Path:
    """A cache folder of this test, but for the compiled kernels, which are those of all tests."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    (folder / "kernels").symlink_to(cache_dir / "kernels")
    return folder


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cache_dir: Path
) -> Run:
    """`command(*arguments)` of `mirage` -> exit code, standard output, standard error.

    It runs in `tmp_path`, with a results store there.
    """
    monkeypatch.setenv("MIRAGE_CACHE_URL", f"sqlite:///{tmp_path}/store.sqlite")
    for console in (cli_shared.out, cli_shared.err):
        monkeypatch.setattr(console, "width", cli_shared.FILE_COLUMNS)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["mirage", *arguments])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else int(bool(e.code))
        text = capsys.readouterr()
        return code, text.out, text.err

    return call
