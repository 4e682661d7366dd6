"""Layers of Llama and BERT have no gains and no scale left, but in what is computed once, from whatever front end they come."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import mirage as mi
from benchmarks.graphs.models import Bert, Llama
from mirage.errors import MirageError
from mirage.runtime.executable import Executable

#: no search, and every operator by itself, so that all that is left is seen
PLAIN: Any = {"without": ("superoptimize", "libraries", "fuse"), "cache": False}
LLAMA = Llama(hidden=32, heads=4, shared=2, head=8, ffn=48)
BERT = Bert(hidden=32, heads=4, ffn=48)


def left(run: Executable) -> list[str]:
    """The operators that every call applies, but for constants and views, with how many operands they have, in order."""
    # behind the text of constants and the function that is called once
    every_call = str(run.program).split("\nfunction ")[-1]
    assert not every_call.startswith("prepare(")
    found = re.findall(r"CallOperator\(operator='(\w+)', args=\[(.*?)\]", every_call)
    return [f"{op} of {args.count(',') + 1}" for op, args in found if op not in ("constant", "reshape", "transpose")]


def prefill(*, without: tuple[str, ...] = ()) -> Executable:
    options = PLAIN | {"without": (*PLAIN["without"], *without)}
    return mi.compile(LLAMA.prefill, dict(LLAMA.prefill_specs()), constants=LLAMA.weights, **options)


def test_a_llama_layer(golden: Any) -> None:
    run = prefill()
    golden("llama_folded.txt", "\n".join(left(run)) + "\n")
    rng = np.random.default_rng(0)
    shapes = {name: t for name, t in LLAMA.prefill_specs().items()}
    arrays = [rng.standard_normal((2, 3, 32), np.float32), np.arange(3)]
    arrays += [rng.standard_normal([int(d) for d in shapes[n].shape]).astype(np.float32) / 4 for n in LLAMA.weights]
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays]
    for found, wanted in zip(run(*arrays), LLAMA.prefill_yardstick(*wide), strict=True):
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_a_bert_layer(golden: Any) -> None:
    """Norms behind each half are read by residuals, too: they stay as they are, and the scale of attention goes."""
    specs = dict(BERT.specs())
    run = mi.compile(BERT.encoder, specs, constants=BERT.weights, **PLAIN)
    golden("bert_folded.txt", "\n".join(left(run)) + "\n")
    rng = np.random.default_rng(1)
    valid = rng.random((2, 5)) < 0.7
    valid[:, 0] = True
    arrays = [rng.standard_normal((2, 5, 32), np.float32), valid]
    arrays += [rng.standard_normal([int(d) for d in specs[n].shape]).astype(np.float32) / 4 for n in BERT.weights]
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays]
    wanted = BERT.yardstick(*wide)
    assert np.abs(run(*arrays) - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_without() -> None:
    assert left(prefill()).count("rms_norm of 1") == 2
    assert left(prefill(without=("fold",))).count("rms_norm of 2") == 2
    with pytest.raises(MirageError, match="fold"):
        prefill(without=("folds",))


def test_gains_that_change() -> None:
    """What is written to a gain counts from `forget` on, as what is written to any constant."""

    def rows(x: Any, g: Any, c: Any, w: Any, b: Any) -> Any:
        return mi.layer_norm(x, g, c) @ w + b

    specs = {"x": mi.tensor("n", 4), "g": mi.tensor(4), "c": mi.tensor(4), "w": mi.tensor(4, 3), "b": mi.tensor(3)}
    run = mi.compile(rows, specs, constants=("g", "c", "w", "b"), without=("superoptimize",), cache=False)
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((5, 4), (4,), (4,), (4, 3), (3,))]

    def wanted() -> np.ndarray:
        x, g, c, w, b = (a.astype(np.float64) for a in arrays)
        centered = x - x.mean(1, keepdims=True)
        y = centered / np.sqrt((centered**2).mean(1, keepdims=True) + 1e-6)
        return (y * g + c) @ w + b

    np.testing.assert_allclose(run(*arrays), wanted(), atol=1e-5)
    before = wanted()
    arrays[1] *= -2
    arrays[2] += 1
    np.testing.assert_allclose(run(*arrays), before, atol=1e-5)
    run.forget()
    np.testing.assert_allclose(run(*arrays), wanted(), atol=1e-5)
    # other arrays are other constants
    arrays[1] = np.zeros(4, np.float32)
    np.testing.assert_allclose(run(*arrays), wanted(), atol=1e-5)
