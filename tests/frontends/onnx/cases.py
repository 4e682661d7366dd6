"""ONNX's own backend tests, through `mirage.onnx.backend`: what passes, and what of it without the reference evaluator."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from glob import glob
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, SequenceProto, TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from mirage.frontends.onnx.types import NAMES
from mirage.onnx.backend import prepare

#: operators run one by one, as NumPy does: no compiler is called
ONE_BY_ONE = ("superoptimize", "fuse", "libraries", "plan", "merge")
#: cases that no backend passes but by chance, or by rounding to 16 bits where the reference does
NOT_EXPECTED = {
    **{f"test_bernoulli{kind}": "its results are random" for kind in (
        "", "_expanded", "_double", "_double_expanded", "_seed", "_seed_expanded"
    )},
    "test_attention_4d_causal_fp16": "the expected values have rounding errors of 16-bit sums",
    "test_attention_4d_causal_fp16_expanded": "the expected values have rounding errors of 16-bit sums",
    "test_if_opt": "a sequence within an optional is a list in a list",
    "test_loop16_seq_none": "a sequence within an optional is a list in a list",
    "test_gradient_of_add": "the reference evaluator has no gradients",
    "test_gradient_of_add_and_mul": "the reference evaluator has no gradients",
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What became of a case: the operators that fell back, and why it failed, if it did."""

    fallback: tuple[str, ...] = ()
    error: str = ""


@cache
def cases(kind: str) -> dict[str, Any]:
    """The cases of a kind, "node", "simple", "pytorch-converted" or "pytorch-operator", by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in load_model_tests(kind=kind)}


def model_of(case: Any) -> ModelProto:
    return case.model or onnx.load(f"{case.model_dir}/model.onnx")


def is_of_our_types(model: ModelProto) -> bool:
    """Whether all inputs and outputs are tensors of types that the graph IR computes with."""
    types = [v.type for v in (*model.graph.input, *model.graph.output)]
    return all(t.WhichOneof("value") == "tensor_type" and t.tensor_type.elem_type in NAMES for t in types)


def data_of(case: Any) -> list[tuple[list[Any], list[Any]]]:
    """The inputs and outputs of a case, for each of its calls."""
    if case.data_sets is not None:
        return [([_array(x) for x in given], [_array(x) for x in expected]) for given, expected in case.data_sets]
    model = model_of(case)
    sets = sorted(glob(f"{case.model_dir}/test_data_set_*"))
    return [(_read(folder, "input", model.graph.input), _read(folder, "output", model.graph.output)) for folder in sets]


def _read(folder: str, kind: str, values: Any) -> list[Any]:
    found: list[Any] = []
    for k in range(len(glob(f"{folder}/{kind}_*.pb"))):
        content = Path(folder, f"{kind}_{k}.pb").read_bytes()
        if values[k].type.WhichOneof("value") == "sequence_type":
            found.append(numpy_helper.to_list(SequenceProto.FromString(content)))
        else:
            found.append(numpy_helper.to_array(TensorProto.FromString(content)))
    return found


def _array(x: Any) -> Any:
    return numpy_helper.to_array(x) if isinstance(x, TensorProto) else x


def run(case: Any, **options: Any) -> Outcome:
    """Compile a case's model and compare what it gives."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            prepared = prepare(model_of(case), "CPU", cache=False, **(options or {"without": ONE_BY_ONE}))
            for given, expected in data_of(case):
                found = prepared.run(given)
                Runner.assert_similar_outputs(expected, found, case.rtol, case.atol, None)
    except Exception as e:
        return Outcome(error=f"{type(e).__name__}: {str(e)[:200]}")
    return Outcome(tuple(sorted({op for p in prepared.model.programs for op in p.imported.fallback})))
