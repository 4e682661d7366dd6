"""The benchmark of whole programs on a GPU: its plan, a dry run, and a row on a stand-in that needs no GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import programs as gpu_programs
from benchmarks.gpu.programs import Device, GpuProgramRow, measure, measured, program_table, rehearse
from benchmarks.graphs.convolutions import CONVOLUTIONS
from benchmarks.graphs.programs import TINY, GraphProgram, programs
from benchmarks.peers import layers_in_torch
from benchmarks.peers.in_torch import Form
from mirage.errors import DeviceError, InputError
from mirage.ir.graph.interpret import run_module

pytest.importorskip("triton", reason="CUDA kernels are compiled by Triton; pip install triton")
torch = pytest.importorskip("torch")

TINY_PROGRAMS = programs(TINY.of("float16"), batch=2, length=8, measured=False)


def tiny(name: str, **sizes: int) -> GraphProgram:
    return replace(TINY_PROGRAMS[name], measured={"tiny": sizes})


def test_programs_are_of_float16() -> None:
    found = measured([])
    assert [p.name for p in found] == list(gpu_programs.NAMES)
    for p in found:
        types = {getattr(t, "dtype", "") for t in p.specs.values()}
        assert "float16" in types and "float32" not in types
        assert len(p.measured) >= 2
    with pytest.raises(InputError, match="'refinement' is not measured; the programs are llama_decode"):
        measured(["refinement"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sizes"),
    [("llama_decode", {"b": 1, "s": 1, "t": 5}), ("bert_encoder", {"b": 1, "s": 4}), ("mixtral_moe", {"n": 3})],
)
def test_a_dry_run_compiles(name: str, sizes: dict[str, int]) -> None:
    (text,) = rehearse([tiny(name, **sizes)], "cuda:sm_90", 2.0)
    assert text.startswith(f"{name} {{'tiny'") and "for cuda:sm_90" in text and "CUDA graphs: " in text


class Fake(Device):
    """PyTorch on the host, with a clock that a call of ours moves by 2 us and one of others by 3."""

    def __init__(self, wrong: float = 0.0) -> None:
        self.clock, self.wrong, self.name = 0.0, wrong, "Fake"

        class Event:
            def __init__(event, enable_timing: bool) -> None: ...

            def record(event) -> None:
                event.at = self.clock

            def synchronize(event) -> None: ...

            def elapsed_time(event, end: Any) -> float:
                return (end.at - event.at) / 1e3

        cuda = SimpleNamespace(synchronize=lambda: None, Event=Event)
        host = lambda a: SimpleNamespace(cuda=lambda: torch.from_numpy(a))  # noqa: E731
        #: what was compiled
        self.compiled: list[Callable[[], Any]] = []
        self._torch = SimpleNamespace(
            cuda=cuda, from_numpy=host, inference_mode=torch.inference_mode, compile=self._compile,
            compiler=SimpleNamespace(reset=lambda: None),
        )  # fmt: skip

    def _compile(self, run: Callable[[], Any], mode: str, dynamic: bool) -> Callable[[], Any]:
        def broken() -> Any:
            raise RuntimeError("out of memory")

        self.compiled.append(run)
        return broken

    def _peers(self, program: GraphProgram, tensors: Any) -> dict[str, Form]:
        def peer(seconds: float) -> Form:
            def run() -> Any:
                self.clock += seconds
                return self.result(program, tensors)

            return Form(run, ())

        return {"slow": peer(4.0), "": peer(3.0)}

    def result(self, program: GraphProgram, tensors: Any) -> Any:
        found = program.expected([t.numpy() for t in tensors])
        return tuple(torch.from_numpy(np.asarray(f)) for f in found)

    def executable(self, program: GraphProgram) -> Any:
        class Ours:
            def __call__(own, *tensors: Any) -> Any:
                self.clock += 2.0
                return tuple(r + self.wrong for r in self.result(program, tensors))

            def to_json(own) -> dict[str, Any]:
                return {"graphs": "the second call is recorded"}

        return Ours()


@pytest.mark.parametrize("wrong", [0.0, 0.5])
def test_a_row(monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    monkeypatch.setattr(gpu_programs, "SECONDS", 0.0)
    device, p = Fake(wrong), tiny("mixtral_moe", n=3)
    monkeypatch.setattr(gpu_programs, "Device", lambda: device)
    monkeypatch.setattr(gpu_programs, "compiled", lambda program, *_: device.executable(program))
    told: list[str] = []
    (row,) = measure([p], "cuda:sm_90", 1.0, 1.0, told.append)
    assert isinstance(row, GpuProgramRow)
    assert (row.ours_us, row.best_peer, row.best_peer_us, row.ratio) == (2.0, "PyTorch", 3.0, 1.5)
    assert row.wrong is (wrong > 0) and ("WRONG" in told[0]) is row.wrong
    assert row.left_out == ["torch.compile: RuntimeError: out of memory"]
    before = device.clock
    device.compiled[0]()
    assert len(device.compiled) == 1 and device.clock == before + 3.0, "the fastest form"
    assert "mixtral_moe" in program_table([row]).markdown()
    assert not list(measure([p], "cuda:sm_90", 1.0, 0.0, told.append)) and "not measured" in told[-1]


def test_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="--dry-run compiles"):
        list(measure([tiny("mixtral_moe", n=3)], "cuda:sm_90", 1.0, 1.0, lambda _: None))


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_are_those_of_peers(name: str) -> None:
    small = replace(CONVOLUTIONS[name], inputs=4, outputs=4, side=6, dtype="float32")
    small = replace(small, groups=min(small.groups, 4))
    p = small.program(name)
    arguments = p.arguments({"b": 2}, np.random.default_rng(0))
    (wanted,) = p.expected(arguments)
    np.testing.assert_allclose(run_module(p.trace(), arguments), wanted, rtol=1e-4, atol=1e-5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers_in_torch, "CONVOLUTIONS", {name: small})
        forms = layers_in_torch.tensor_layers(p, [torch.from_numpy(a) for a in arguments])
    assert set(forms) == {"", "channels last"}
    for form in forms.values():
        np.testing.assert_allclose(form().numpy(), wanted, rtol=1e-4, atol=1e-5)
