"""The benchmark of a GPU: its plan, its file of rows, and a race of versions on a stand-in that needs no GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import device as gpu_device
from benchmarks.gpu import kernels as gpu
from benchmarks.gpu.kernels import Results, measure
from benchmarks.gpu.rows import Case, Failure, GpuRow, cases, gpu_table, markdown, read_rows, summary, traced
from benchmarks.programs import KERNELS
from mirage.errors import DeviceError, FormatError, InputError, LibraryError, SearchError
from mirage.ir.axes import to_axes
from mirage.ir.interpret import run_reference
from mirage.ir.types import DTYPES
from mirage.kernels.library import LibraryProgram

torch = pytest.importorskip("torch")

CASES = cases(["norm_transformer"])
ROW = GpuRow(
    program="rms_norm",
    sizes="default",
    dtype="float16",
    batch=1,
    first=True,
    device="NVIDIA H200",
    date="2026-11-21",
    kernels=1,
    cold=True,
    memory_bound=True,
    error=2e-4,
    error_peer=3e-4,
    wrong=False,
    ours_us=2.0,
    best_peer="PyTorch",
    best_peer_us=3.0,
    ratio=1.5,
    floor_us=1.8,
    floor_share=0.9,
    times={"mirage": 2.0, "PyTorch": 3.0},
    left_out=[],
    compiled=True,
)


def test_every_program_is_measured_in_both_types_and_decoding_first() -> None:
    found = cases([])
    assert {(c.program, c.dtype) for c in found} == {(p, t) for p in KERNELS for t in ("float16", "bfloat16")}
    first = [c.first for c in found]
    assert first == sorted(first, reverse=True)
    assert {c.label for c in found if c.program == "gqa_decode" and c.first} == {"decode", "speculative"}
    with pytest.raises(InputError, match="no measured program is named nonsense"):
        cases(["nonsense"])


def test_floor_and_copies() -> None:
    (case,) = (c for c in cases(["gqa_decode"]) if c.label == "decode" and c.dtype == "float16")
    # keys and values of 8 heads, 64 queries and results, of 128 numbers of 2 bytes
    assert case.cost[0] == 2 * 128 * (2 * 8 * 4096 + 2 * 64)
    assert case.floor_us == pytest.approx(case.cost[0] / 4.3e6) and case.memory_bound
    assert case.cold and case.copies * case.cost[0] >= 3 * (60 << 20)
    small = next(c for c in cases(["norm_transformer"]) if c.label == "batch1")
    assert small.copies == 256 and not small.cold


class CpuDevice(gpu_device.Device):
    """The race of a device with PyTorch on the processor, without graphs."""

    def __init__(self) -> None:
        self._torch = torch
        self.name = "none"

    def check(self) -> None: ...

    @contextmanager
    def _stream(self) -> Iterator[None]:
        yield

    def _copies(self, program: Any, case: Case) -> list[list[Any]]:
        made = [np.random.default_rng(0).standard_normal(t.bind(case.sizes)) for t in program.input_types]
        return [[torch.from_numpy(x).to(getattr(torch, case.dtype)) for x in made] for _ in range(3)]

    def _library(self, program: Any) -> LibraryProgram:
        return LibraryProgram(to_axes(program))

    def _cutlass(self, result: Any, case: Case) -> LibraryProgram:
        if case.program == "norm_transformer":
            raise LibraryError("no kernel serves it")
        library = self._library(result.program)
        return lambda xs, ss: [y + result.cutlass_error for y in library(xs, ss)]  # type: ignore[return-value]

    def _compiled(self, case: Case, copies: Any) -> dict[str, Any]:
        def refused(k: int) -> Any:
            raise RuntimeError("no compiler\nmore")

        return {"torch.compile": refused}

    def _captured(self, call: Any, copies: int) -> Any:
        return lambda: [call(k) for k in range(copies)]

    def _replayed(self, graph: Any) -> float:
        return float(len(graph()))

    def _array(self, tensor: Any) -> Any:
        return tensor.view(torch.int16).numpy().view(DTYPES[str(tensor.dtype).removeprefix("torch.")])

    def _tensor(self, result: Any) -> Any:
        return result if isinstance(result, torch.Tensor) else torch.from_numpy(result.astype(np.float64))


class FakeResult:
    """A result that runs the program with NumPy, off by `error`."""

    def __init__(self, case: Case, error: float = 0.0, cutlass_error: float = 0.0) -> None:
        self.cutlass_error = np.float16(cutlass_error)
        self.program = traced(case.program, case.dtype)
        self._sizes, self._error = case.sizes, error
        self.ranked_by_model = True

    def profile(self, seconds: float) -> None:
        self.ranked_by_model = False

    def choice(self, sizes: Any) -> Any:
        return SimpleNamespace(executable=SimpleNamespace(emitted=SimpleNamespace(steps=[1, 2])))

    def __call__(self, *tensors: Any) -> Any:
        assert not self.ranked_by_model, "not profiled"
        inputs = [t.double().numpy() for t in tensors]
        found = run_reference(self.program, inputs, self._sizes, "float64")[0]
        return torch.from_numpy(found + self._error)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "Device", CpuDevice)
    monkeypatch.setattr(gpu_device, "RACE", 0.0)
    monkeypatch.setattr(gpu_device, "ROUNDS", 2)


def _run(wanted: list[Case], file: Path, made: Any = FakeResult, minutes: float = 5) -> Any:
    said: list[str] = []
    return *measure(wanted, file, made, minutes, said.append), said


@pytest.mark.usefixtures("on_cpu")
def test_rows_are_written_and_continued(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows, failures, said = _run(CASES[:2], file)
    assert [(r.program, r.sizes, r.dtype) for r in rows] == [c.key for c in CASES[:2]] and not failures
    # once without and once with torch.compile
    assert len(said) == 4 == len(file.read_text().splitlines())
    for r in rows:
        assert r.compiled and not r.wrong and r.error < 1e-3 and r.kernels == 2
        assert set(r.times) == {"mirage", "cuBLASLt", "PyTorch"} and r.times["mirage"] == 1.0
        assert r.left_out == ["CUTLASS: LibraryError: no kernel serves it", "torch.compile: RuntimeError: no compiler"]
        assert r.floor_share == pytest.approx(r.floor_us)
    # a run that was killed within a line
    whole = file.read_text()
    file.write_text(whole + whole[:40])
    again, _, said = _run(CASES[:2], file)
    assert again == rows and not said
    more, _, said = _run(CASES[:3], file)
    assert more[:2] == rows and len(more) == 3 and len(said) == 2


@pytest.mark.usefixtures("on_cpu")
def test_wrong_results_are_told(tmp_path: Path) -> None:
    rows, _, said = _run(CASES[:1], tmp_path / "rows.jsonl", lambda case: FakeResult(case, error=1.0))
    assert rows[0].wrong and all("WRONG" in line for line in said)
    assert "Wrong results: 1." in summary(rows)


@pytest.mark.slow
@pytest.mark.usefixtures("on_cpu")
def test_cutlass_kernels_are_no_peer(tmp_path: Path) -> None:
    case = next(c for c in cases(["lora"]) if c.dtype == "float16")
    ((row,), _, _) = _run([case], tmp_path / "rows.jsonl")
    assert "CUTLASS" in row.times and row.best_peer != "CUTLASS" and not row.wrong
    (cells,) = gpu_table([row]).rows
    assert cells[6] == "1.00"
    ((row,), _, _) = _run([case], tmp_path / "wrong.jsonl", lambda case: FakeResult(case, cutlass_error=9.0))
    assert row.wrong and any(x.startswith("CUTLASS: WRONG by") for x in row.left_out)


@pytest.mark.usefixtures("on_cpu")
def test_a_case_that_fails_ends_nothing_and_is_not_tried_again(tmp_path: Path) -> None:
    def made(case: Case) -> FakeResult:
        if case == CASES[0]:
            raise SearchError("nothing fits")
        return FakeResult(case)

    file = tmp_path / "rows.jsonl"
    rows, failures, said = _run(CASES[:2], file, made)
    assert len(rows) == 1 and failures == [Failure(*CASES[0].key, "nothing fits")]
    assert said[0].endswith("FAILED: nothing fits")
    assert _run(CASES[:2], file, made) == (rows, failures, [])


@pytest.mark.usefixtures("on_cpu")
def test_no_case_is_begun_when_the_time_is_over(tmp_path: Path) -> None:
    rows, failures, said = _run(CASES, tmp_path / "rows.jsonl", minutes=0)
    assert not rows and not failures
    assert said == [f"0 minutes are over: {2 * len(CASES)} measurements are left; run the same command again"]


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": 1}\n')
    with pytest.raises(FormatError, match="line 1: not a row"):
        read_rows(file)
    assert file.read_text() == '{"a": 1}\n'


def test_without_a_device_the_error_names_the_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu_device, "import_module", lambda name: torch)
    file = tmp_path / "rows.jsonl"
    with pytest.raises(DeviceError, match="--dry-run"):
        measure(CASES[:1], file, Results("cuda:sm_90", 1.0, print), 1, print)
    assert not file.exists()


def test_tables() -> None:
    lost = replace(ROW, sizes="batch1", ratio=0.9, floor_share=0.5, cold=False)
    text = markdown([ROW, lost])
    assert text.startswith("Measured on NVIDIA H200, 2026-11-21.\n\n| program")
    assert "| rms_norm | default | float16 | 2.00 | PyTorch | 3.00 |  | 1.50 | 1.80 | 90% | 2e-04 | 1 |" in text
    assert "batch1 (in L2)" in text and "at least 80% of the floor: 1 of 1." in text and "Rows below 0.95: 1." in text
    assert len(gpu_table([ROW]).rows) == 1
    assert GpuRow(**json.loads(json.dumps(asdict(ROW)))) == ROW


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["rms_norm", "gqa_decode_d64"])
def test_a_row_on_a_gpu(name: str) -> None:
    device = gpu_device.Device()
    case = cases([name])[0]
    row = device.row(case, Results("cuda", 5.0, print)(case), compiled=False)
    assert not row.wrong and row.ours_us > 0 and {"mirage", "cuBLASLt"} <= set(row.times)
