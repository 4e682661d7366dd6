"""What a machine without a GPU can check of the measured programs' CUDA kernels, and the file and table of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu import static
from benchmarks.gpu.interpret.interpreter import Interpreter
from benchmarks.gpu.static import (
    DTYPES,
    TARGETS,
    KernelFigures,
    StaticRow,
    examined,
    matrix,
    read_rows,
    sizes_of,
    static_table,
    summary,
    survey,
)
from benchmarks.programs import PROGRAMS
from mirage.errors import FormatError, InputError, SearchError
from mirage.ir.types import DTYPES as TYPES
from mirage.ir.types import epsilon
from mirage.kernels.cuda.device import cuda_device
from tests.mugraph.graphs import ATTENTION_SIZES, flash_attention
from tests.sampled import thinned

pytest.importorskip("triton", reason="Triton compiles the kernels: pip install triton")

KERNEL = KernelFigures(0, "kernel_0", "b=64", 96, 0, 64 << 10, "wgmma.mma_async", 4096, 64)
ROW = StaticRow(
    program="lora",
    dtype="float16",
    target="cuda:sm_90",
    date="2026-11-21",
    versions=1,
    compiled=3,
    spilled=1,
    seconds=2.0,
    kernels=(KERNEL,),
    errors={"b=1": 1e-4, "b=2": 5e-4},
    wrong=(),
)


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    with Interpreter() as found:
        yield found


def check(row: StaticRow) -> None:
    """No version of a program spills, asks for more than the device has, or differs from float64; products use the tensor
    cores that the architecture has.
    """
    assert row.kernels
    assert row.spills == 0
    assert max(k.shared_bytes for k in row.kernels) <= cuda_device(row.target).block_shared_bytes
    assert row.wrong == ()
    assert len(row.errors) == len(static.COMPARED)
    assert max(row.errors.values()) <= max(4 * epsilon(TYPES[row.dtype]), 1e-4)
    assert row.without_wgmma == []
    assert row.good


@pytest.mark.parametrize("name,target", thinned([("rms_norm", "cuda:sm_90"), ("softmax", "cuda:sm_80")]))
def test_versions_of_small_programs_fit_and_agree(name: str, target: str, interpreter: Interpreter) -> None:
    check(examined(name, "float16", target, interpreter, budget=1.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "target,dtype", [(t, d) for t in TARGETS for d in DTYPES if d == "float16" or t == "cuda:sm_90"]
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_versions_of_every_program_fit_and_agree(name: str, target: str, dtype: str, interpreter: Interpreter) -> None:
    check(examined(name, dtype, target, interpreter, budget=5.0))


def test_every_program_with_products_has_sizes_of_many_rows() -> None:
    for name in PROGRAMS:
        sets = sizes_of(name)
        dims = {"qknorm_attention": "s", "moe": "n", "lora": "b"}
        if name in dims:
            assert {256, 64} <= {s[dims[name]] for s in sets}
        if name == "softmax":
            assert sets == [{"m": 1024, "n": 1024}]


def test_the_sides_of_a_product_are_those_of_the_whole_problem() -> None:
    graph = flash_attention().graph
    sizes = {**ATTENTION_SIZES, "d8": 8, "d64": 64, "d64_2": 64, "s": 4, "t": 4096}
    assert matrix(graph, graph.kernels[0], sizes) == (4096, 32)
    assert matrix(graph, graph.kernels[0], {**sizes, "t": 16}) == (64, 32)


@pytest.mark.parametrize(
    "change,lost",
    [
        ({"instruction": "mma.sync"}, 1),
        ({"instruction": ""}, 1),
        ({"instruction": "tcgen05.mma"}, 0),
        ({"instruction": "mma.sync", "columns": 8}, 0),
        ({"instruction": "mma.sync", "rows": 32, "columns": 32}, 0),
    ],
)
def test_products_of_64_rows_want_the_warpgroups_instruction(change: dict[str, object], lost: int) -> None:
    row = replace(ROW, kernels=(replace(KERNEL, **change),))  # type: ignore[arg-type]
    assert len(row.without_wgmma) == lost
    assert row.good is not bool(lost)
    for other in ({"target": "cuda:sm_80"}, {"dtype": "float32"}):
        assert replace(row, **other).good  # type: ignore[arg-type]


def test_rows_that_are_not_good_say_why() -> None:
    assert not replace(ROW, wrong=("b=1",)).good
    assert not replace(ROW, kernels=(replace(KERNEL, spill_bytes=8),)).good
    assert "Bytes spilled: 8" in summary([replace(ROW, kernels=(replace(KERNEL, spill_bytes=8),))])
    assert "Rows with wrong results: 1" in summary([ROW, replace(ROW, wrong=("b=1",))])


def test_the_table_has_a_line_per_program_and_architecture() -> None:
    rows = [ROW, replace(ROW, dtype="bfloat16", wrong=("b=1",)), replace(ROW, target="cuda:sm_80")]
    table = static_table(rows)
    assert [line[:2] for line in table.rows] == [["lora", "sm_90"], ["lora", "sm_80"]]
    line = dict(zip(table.header, table.rows[0], strict=True))
    assert (line["kernels"], line["of 64 rows"], line["with wgmma"]) == ("2", "2", "2")
    assert line["error, float16"] == "5e-04"
    assert line["error, bfloat16"] == "5e-04 WRONG"
    assert line["error, float32"] == ""


def test_a_survey_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, str]] = []

    def found(name: str, dtype: str, target: str, interpreter: Interpreter, budget: float) -> StaticRow:
        asked.append((name, dtype, target))
        if dtype == "float32":
            raise SearchError("no kernel compiles")
        return replace(ROW, program=name, dtype=dtype, target=target)

    monkeypatch.setattr(static, "examined", found)
    file, said = tmp_path / "rows.jsonl", list[str]()
    rows, failures = survey(["lora"], file, 1.0, 1.0, said.append)
    assert len(rows) == 4 and read_rows(file) == rows
    assert len(failures) == 2 and "no kernel compiles" in failures[0]
    asked.clear()
    file.write_text(file.read_text() + '{"program": "lo')
    again, _ = survey(["lora"], file, 1.0, 1.0, said.append)
    assert again == rows
    assert {d for _, d, _ in asked} == {"float32"}
    asked.clear()
    survey([], file, 1.0, 0.0, said.append)
    assert not asked and "run the same command again" in said[-1]


def test_bad_names_and_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no measured program is named lore; choose from rmsnorm_linear"):
        survey(["lore"], tmp_path / "rows.jsonl", 1.0, 1.0, print)
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"program": "lora"}\n')
    with pytest.raises(FormatError, match="line 1: not a row of this benchmark"):
        read_rows(bad)
