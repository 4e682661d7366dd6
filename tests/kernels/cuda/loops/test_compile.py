"""Triton code of loop programs: as it reads, and as it compiles ahead of time, without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from benchmarks.gpu.ptx import load_bytes, store_bytes
from mirage.errors import CompilerError
from mirage.ir.loops.parse import parse_loops
from mirage.kernels.cuda.compile.functions import Request
from mirage.kernels.cuda.compile.kernels import CompiledKernel
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.loops import together
from mirage.kernels.cuda.loops.emit import emit
from mirage.kernels.cuda.loops.kernel import CudaLoopKernel
from mirage.kernels.cuda.loops.versions import LoopVersions
from tests.ir.loops.programs import programs, reduced
from tests.kernels.cuda.lab import Lab

BIG = {"b": 8, "n": 4096, "m": 4096, "k": 512}


@pytest.mark.parametrize(
    ("name", "hints"),
    [
        ("masked_softmax", {"n": 4096, "m": 1024}),
        ("embedding", BIG),
        ("softmax_columns", {"n": 8, "m": 128, "k": 512}),
        ("extremes", {"n": 2, "m": 1 << 20}),
    ],
)
def test_golden(golden: Callable[[str, str], None], name: str, hints: dict[str, int]) -> None:
    versions = LoopVersions(programs()[name], DEVICES["sm_90"], hints)
    golden(f"cuda_loops_{name}.py.txt", versions.emitted(versions.hints).source)


def test_names_of_other_scripts_and_of_what_the_code_uses() -> None:
    program = parse_loops("""\
def names(größe: float32[n, m], row: float32[m], program: float32[m]) -> float32[n]:
    @sum
    def start(g0) -> float32[n]:
        for c0_0 in range(m):
            yield größe[g0, c0_0] * row[c0_0] * program[c0_0]
    def failures(tl) -> float32[n]:
        return start[tl] * 2.0
    return failures
""")
    source = LoopVersions(program, DEVICES["sm_90"], {}).emitted({"n": 4, "m": 4}).source
    assert source.isascii()
    compile(source, "source", "exec")


@pytest.fixture(scope="module")
def _triton() -> None:
    pytest.importorskip("triton", reason="Triton compiles the kernels: pip install 'triton>=3.5'")


@pytest.mark.usefixtures("_triton")
def test_kernels_compile() -> None:
    names, archs = ("masked_softmax", "embedding", "halves"), ("sm_80", "sm_90")
    kernels = {(n, a): CudaLoopKernel(programs()[n], DEVICES[a], BIG) for n in names for a in archs}
    for kernel in kernels.values():
        assert all(k.spill_bytes == 0 for k in kernel.kernels)
    for arch in archs:
        # eight 16-bit numbers with each load
        (k,) = kernels["halves", arch].kernels
        assert set(load_bytes(k.ptx)) == set(store_bytes(k.ptx)) == {16}


@pytest.mark.slow
@pytest.mark.usefixtures("_triton")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", programs())
def test_all_kernels_compile(name: str, arch: str) -> None:
    for hints in (BIG, {"b": 2, "n": 7, "m": 33, "k": 19}, {"b": 1, "n": 2, "m": 1 << 19, "k": 64}):
        kernel = CudaLoopKernel(programs()[name], DEVICES[arch], hints)
        # ptxas may put two registers aside to have room for another block
        assert all(k.spill_bytes <= 8 for k in kernel.kernels), hints


@pytest.mark.slow
@pytest.mark.usefixtures("_triton")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64"])
@pytest.mark.parametrize("combiner", ["sum", "prod", "max", "min"])
def test_reductions_compile(combiner: str, dtype: str) -> None:
    for hints in ({"n": 100, "m": 100}, {"n": 5000, "m": 1000}):
        kernel = CudaLoopKernel(reduced(combiner, dtype), DEVICES["sm_90"], hints)
        assert all(k.spill_bytes == 0 for k in kernel.kernels)


@pytest.mark.slow
@pytest.mark.usefixtures("_triton")
@pytest.mark.parametrize("name", ["doubled", "transposed", "rotary", "masked_softmax", "columns", "causal"])
def test_other_layouts_are_read_by_16_bytes(name: str) -> None:
    hints = BIG if name != "rotary" else {"b": 8, "n": 1024, "m": 64}
    kernel = CudaLoopKernel(programs()[name], DEVICES["sm_90"], hints)
    assert 16 in load_bytes(kernel.kernels[0].ptx)


@pytest.mark.slow
@pytest.mark.usefixtures("_triton")
@pytest.mark.parametrize("name", ["embedding", "masked_softmax", "regrouped", "counts"])
def test_64_bit_indices_compile(name: str) -> None:
    huge = {"b": 1 << 12, "n": 1 << 29, "m": 1 << 13, "k": 1 << 15}
    versions = LoopVersions(programs()[name], DEVICES["sm_90"], BIG)
    assert versions.emitted(huge).index == "i64"
    kernel = CudaLoopKernel(programs()[name], DEVICES["sm_90"], huge)
    assert ".to(tl.int64)" in kernel.source and all(k.spill_bytes == 0 for k in kernel.kernels)


@pytest.mark.usefixtures("_triton")
def test_a_second_kernel_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    program = programs()["doubled"]
    first = CudaLoopKernel(program, DEVICES["sm_90"], BIG).kernels
    monkeypatch.setattr("mirage.kernels.cuda.compile.kernels._build", lambda *_: pytest.fail("it was compiled before"))
    assert CudaLoopKernel(program, DEVICES["sm_90"], BIG).kernels == first


def test_all_kernels_that_wait_are_compiled_at_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def compile_all(requests: Sequence[Request]) -> list[CompiledKernel | CompilerError]:
        asked.append(len(requests))
        return [*lab.compile_all(requests)]

    # those of other tests
    _ = CudaLoopKernel(programs()["doubled"], DEVICES["sm_90"], BIG).kernels
    monkeypatch.setattr(together, "compile_all", compile_all)
    made = [
        CudaLoopKernel(programs()[name], DEVICES["sm_90"], BIG) for name in ("doubled", "merged_heads", "transposed")
    ]
    assert not asked
    assert [[k.name for k in m.kernels] for m in made] == [["kernel_0"], ["kernel_0", "kernel_1"], ["kernel_0"]]
    # each for sizes that are multiples of 16, and for all
    assert asked == [2 * 4]


def test_errors_of_the_compiler_are_those_of_their_kernel(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_all(requests: Sequence[Request]) -> list[CompiledKernel | CompilerError]:
        return [CompilerError("rejected") if "def embedding" in r.source else lab.compile_all([r])[0] for r in requests]

    monkeypatch.setattr(together, "compile_all", compile_all)
    good, bad = (CudaLoopKernel(programs()[name], DEVICES["sm_90"], BIG) for name in ("doubled", "embedding"))
    assert good.kernels
    for _ in range(2):
        with pytest.raises(CompilerError, match="rejected"):
            _ = bad.kernels


def test_one_source_serves_sizes_of_the_same_blocks() -> None:
    versions = LoopVersions(programs()["masked_softmax"], DEVICES["sm_90"], {})
    a, b, c = (versions.emitted({"n": 4096, "m": m}) for m in (1000, 1024, 1025))
    assert a is b and a is not c
    other = emit(versions.program, versions.kernels, versions.schedules({"n": 4096, "m": 1000}))
    assert other == a
