"""Models of PyTorch whose weights are stored in 16 or 8 bits: times and errors beside float32, and beside what peers have for it.

`python -m benchmarks.run stored`, or `python -m benchmarks.flow.stored [--only NAME] [--markdown]`. Each is compiled once for all
sizes by `mirage.torch.compile`. ONNX Runtime has weights in blocks of 128 terms that are made real for each product, and
activations that are quantized in each call, PyTorch the latter. Versions take turns in a race.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import typer
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import nn

from benchmarks.command import command
from benchmarks.flow.exported import (
    Model,
    cast,
    exported,
    first_line,
    first_result,
    in_onnx_runtime,
    in_runtimes,
    onnx_file,
    ours,
)
from benchmarks.flow.models import CASES, FEW, Case
from benchmarks.peers.peers import complain, inference
from benchmarks.tables import Table
from benchmarks.timing import race
from mirage.errors import InputError
from mirage.settings import num_threads

#: cases that are measured, at the first of their sizes
NAMES = ("gpt2 decode", "llama decode", "t5 decode", "whisper decode", "bert encode")
#: our versions, by the `weights` that they are compiled with
OURS: Mapping[str, str] = {
    "Mirage": "float32", "Mirage bfloat16": "bfloat16", "Mirage int8": "int8", "Mirage int8/128": "int8/128",
    "Mirage int8/32": "int8/32", "Mirage int8, dynamic": "int8/dynamic",
}  # fmt: skip
#: seconds of a search, and of a race
BUDGET, SECONDS = 10.0, 2.0


@dataclass(frozen=True)
class StoredRow:
    """A model of two layers at one set of sizes: minimum and median of calls in ms, and relative L2 errors of its first result,
    by version.
    """

    case: str
    batch: int
    length: int
    cached: int
    times: dict[str, tuple[float, float]]
    errors: dict[str, float]


def measure(names: Sequence[str] = (), say: Callable[[str], None] = complain) -> Iterator[StoredRow]:
    """A row per case, all of `NAMES` if none is named; raises InputError for a name of nothing."""
    if unknown := [n for n in names if n not in NAMES]:
        raise InputError(f"no case is named {', '.join(unknown)}; choose from {', '.join(NAMES)}")
    torch.set_num_threads(num_threads())
    for name in names or NAMES:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"), inference():
            yield _measured(CASES[name], Path(folder), say)


def _measured(case: Case, folder: Path, say: Callable[[str], None]) -> StoredRow:
    rng = np.random.default_rng(0)
    model = case.build(FEW)
    example = case.inputs(model, case.example, rng)
    runs: dict[str, Model] = {}
    with torch.inference_mode(False), torch.no_grad():
        for name, weights in OURS.items():
            runs[name] = ours(model, example, budget=BUDGET, weights=weights)
        say(f"{case.name}: compiled")
        program = exported(model, example)
    (sizes,) = case.sizes(1)
    inputs = case.inputs(model, sizes, rng)
    runs["PyTorch"] = lambda inputs: model(*inputs)
    of_torch = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    runs["PyTorch int8, dynamic"] = lambda inputs: of_torch(*inputs)
    runs |= _in_16_bits(case, inputs)
    try:
        with redirect_stdout(StringIO()):
            path = onnx_file(program, folder)
            runs |= in_runtimes(path, num_threads(), say) | in_8_bits(path, folder)
    except Exception as e:  # of packages that are no part of this project: anything
        say(f"{case.name}: peers are left out: {first_line(e)}")
    wanted = first_result(model(*inputs))
    errors = {}
    for name, run in list(runs.items()):
        try:
            run(inputs)
            errors[name] = float(np.linalg.norm(first_result(run(inputs)) - wanted) / np.linalg.norm(wanted))
        except Exception as e:  # the same
            say(f"{case.name}: {name} is left out: {first_line(e)}")
            del runs[name]
    times = race({n: partial(run, inputs) for n, run in runs.items()}, seconds=SECONDS)
    found = {n: (t.min_us / 1e3, t.median_us / 1e3) for n, t in times.items()}
    say(f"{case.name} {sizes}: " + ", ".join(f"{n} {t:.2f}" for n, (_, t) in found.items()))
    return StoredRow(case.name, *sizes, found, errors)


def _in_16_bits(case: Case, inputs: Sequence[Any]) -> dict[str, Model]:
    """The model in PyTorch, all of it and its caches in bfloat16, as it is and compiled; for these inputs, which callers have in
    that type.
    """
    model = case.build(FEW).to(torch.bfloat16)
    compiled = torch.compile(model, dynamic=True)
    given = cast(inputs, torch.bfloat16)
    return {"PyTorch bfloat16": lambda _: model(*given), "torch.compile bfloat16": lambda _: compiled(*given)}


def in_8_bits(path: Path, folder: Path) -> dict[str, Model]:
    """An ONNX file in ONNX Runtime, with weights in 8 bits: of blocks of 128 terms, and with products of whole numbers."""
    prepared, blocks, dynamic = (folder / f"{n}.onnx" for n in ("prepared", "blocks", "dynamic"))
    logging.disable(logging.INFO)
    # weights that are transposed become constants
    quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True, save_as_external_data=True)
    quantizer = MatMulNBitsQuantizer(onnx.load(str(prepared)), bits=8, block_size=128, is_symmetric=True, accuracy_level=4)
    quantizer.process()
    quantizer.model.save_model_to_file(str(blocks), use_external_data_format=True)
    quantize_dynamic(str(prepared), str(dynamic), per_channel=True, use_external_data_format=True)
    logging.disable(logging.NOTSET)
    return {
        "ONNX Runtime int8/128": in_onnx_runtime(blocks, num_threads()),
        "ONNX Runtime int8, dynamic": in_onnx_runtime(dynamic, num_threads()),
    }


def stored_table(rows: Sequence[StoredRow]) -> Table:
    """Minimum and median of each version in milliseconds, and its error."""
    names = dict.fromkeys(n for r in rows for n in r.times)
    lines = []
    for n in names:
        cells = ["{:.2f} / {:.2f}, {:.2%}".format(*r.times[n], r.errors[n]) if n in r.times else "" for r in rows]
        lines.append([n, *cells])
    titles = [f"{r.case}, {r.batch} by {r.length}{f', {r.cached} cached' if r.cached else ''}" for r in rows]
    return Table(["minimum / median, ms, error", *titles], lines)


def section(rows: Sequence[StoredRow]) -> str:
    """The part of the page of benchmarks."""
    return stored_table(rows).markdown()


main = command(
    "Models of PyTorch with weights in 16 and 8 bits, beside float32 and what peers have for it.",
    "A case, such as 'gpt2 decode'", measure, section, stored_table,
)  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
