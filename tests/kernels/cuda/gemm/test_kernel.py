"""CUTLASS kernels: compiled ahead of time, run instruction by instruction on the processor, and compared with float64."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from mirage.errors import NoCompilerError
from mirage.kernels.cuda.compile.kernels import CompiledKernel, compile_all
from mirage.kernels.cuda.device import DEVICES, CudaDevice
from mirage.kernels.cuda.gemm import gemm as cutlass_gemm
from mirage.kernels.cuda.gemm.gemm import CONFIGS, FUNCTIONS, Gemm, GemmCall, GemmConfig
from mirage.kernels.cuda.gemm.operator import GemmRequest, check_installed
from tests.kernels.cuda.gemm import ptx
from tests.kernels.cuda.gemm.cases import ALL_OPERANDS, EPILOGUES, PLAIN, SILU_RESIDUAL, Example
from tests.kernels.cuda.gemm.cubin import parameters

try:
    check_installed()
    _WHY = ""
except NoCompilerError as e:
    _WHY = str(e)
pytestmark = pytest.mark.skipif(bool(_WHY), reason=_WHY)

SM80, SM90 = DEVICES["sm_80"], DEVICES["sm_90"]
SMALL = CONFIGS[0]
#: a depth that tiles of 64 and of 32 do not divide, of several rounds of the stages
DEEP = 584


def _compiled(gemm: Gemm, device: CudaDevice) -> CompiledKernel:
    (found,) = compile_all([GemmRequest(gemm, device.arch)])
    assert isinstance(found, CompiledKernel), found
    assert found.spill_bytes == 0 and found.registers * found.num_warps * 32 <= device.registers
    return found


def _run(gemm: Gemm, device: CudaDevice, sizes: tuple[int, int, int, int]) -> None:
    """Run a kernel's PTX for (batch, rows, columns, depth), and compare."""
    kernel, example = _compiled(gemm, device), Example(gemm, sizes)
    call = example.call([0] * len(example.arrays))
    assert call.fits(gemm)
    arguments = [*example.arrays, *(int(v) for v in call.arguments()[len(example.arrays) :])]
    ptx.run(kernel.ptx, call.grid(gemm.config), arguments, kernel.shared)
    example.check(example.arrays[2])


@pytest.mark.parametrize("b_by_depth", [False, True])
@pytest.mark.parametrize("a_by_depth", [False, True])
@pytest.mark.parametrize("config", [SMALL, CONFIGS[2]], ids=str)
def test_products_over_tails(config: GemmConfig, a_by_depth: bool, b_by_depth: bool) -> None:
    """Sizes that no tile divides, in either order of memory of either factor."""
    m, n, _ = config.tile
    gemm = Gemm("float16", "float16", a_by_depth, b_by_depth, SILU_RESIDUAL, config)
    # rows may be any number where they are not contiguous
    _run(gemm, SM90, (1, m // 2 + 8 if not a_by_depth else m // 2 + 3, n + 8, DEEP))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_configurations(config: GemmConfig) -> None:
    m, n, _ = config.tile
    _run(Gemm("bfloat16", "float32", True, False, ALL_OPERANDS, config), SM90, (2, m + 1, n - 8, 136))


def test_many_tiles() -> None:
    """More rows of tiles than blocks go through at a time."""
    _run(Gemm("float16", "float16", True, False, PLAIN, SMALL), SM90, (2, 16 * 18 - 5, 72, 64))


def test_an_older_architecture() -> None:
    _run(Gemm("float16", "float16", True, False, SILU_RESIDUAL, SMALL), SM80, (1, 5, 40, 200))


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(name: str) -> None:
    _run(Gemm("float16", "float32", True, False, EPILOGUES[name], SMALL), SM90, (1, 3, 40, 72))


def test_every_function_is_tested() -> None:
    assert {s[0] for e in EPILOGUES.values() for s in e.steps} == FUNCTIONS


@pytest.mark.parametrize("device", [DEVICES[a] for a in ("sm_80", "sm_90", "sm_100")], ids=lambda d: d.arch)
def test_machine_code(device: CudaDevice) -> None:
    """The instructions of tensor cores are there, registers do not spill, and parameters are where a launch puts them."""
    config = CONFIGS[-1]
    gemm = Gemm("float16", "float16", True, False, ALL_OPERANDS, config)
    kernel = _compiled(gemm, device)
    assert "mma.sync.aligned.m16n8k16" in kernel.ptx and "cp.async.cg.shared.global" in kernel.ptx
    assert kernel.shared == config.shared_bytes and kernel.num_warps == config.num_warps
    # as CuPy packs them: each at a multiple of its size
    sizes = {"pointer": 8, "i32": 4, "i64": 8}
    wanted, at = [], 0
    for _, kind in gemm.parameters():
        at = -(-at // sizes[kind]) * sizes[kind]
        wanted.append((at, sizes[kind]))
        at += sizes[kind]
    assert parameters(kernel.cubin.read_bytes(), kernel.name) == wanted
    call = GemmCall(8, 8, 8, 1, (0, 8, 0), (0, 8, 0), (0, 8, 0), ((0, 8, 1, 0),) * len(ALL_OPERANDS.operands))
    assert [a.itemsize for a in call.arguments()] == [s for _, s in wanted]


def test_the_cache_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    gemm = Gemm("float16", "float16", True, False, PLAIN, SMALL)
    first = _compiled(gemm, SM90)

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert _compiled(gemm, SM90) == first
    with pytest.raises(NoCompilerError, match=r"nvidia-cutlass-dsl 4.8.1, which is not installed; .*cutlass"):
        compile_all([GemmRequest(Gemm("bfloat16", "bfloat16", True, False, PLAIN), "sm_90")])


def test_a_kernel_that_is_rejected() -> None:
    # a warp has at least two columns of instructions of eight
    broken = GemmConfig((16, 24, 64), 3, (1, 4))
    (found,) = compile_all([GemmRequest(Gemm("float16", "float16", True, False, PLAIN, broken), "sm_90")])
    assert "CUTLASS rejected kernel 'cutlass_gemm_float16'" in str(found)


def test_the_kernel_has_all_functions() -> None:
    kernel = Path(cutlass_gemm.__file__).with_name("kernel.py")
    spec = importlib.util.spec_from_file_location("kernel", kernel)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.FUNCTIONS.keys() == FUNCTIONS
    assert module.VECTOR == cutlass_gemm.VECTOR and module.VECTOR_BYTES == cutlass_gemm.ALIGNMENT
