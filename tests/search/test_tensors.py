"""What kernels hand to one another: which results are stored, and who may read them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

import mirage as mi
from mirage.ir.axes import to_axes
from mirage.mugraph.graph import partial_axis
from mirage.mugraph.reference import reference_graph
from mirage.search.closure import Value
from mirage.search.options import SearchOptions
from mirage.search.plan import KernelPlan
from mirage.search.space import Space
from mirage.search.steps import finish
from mirage.search.tensors import KernelTensor, Tensors
from tests.programs import QUICK, SMALL, T, axes, space

NONE = KernelPlan()
NAMES = [*QUICK, *SMALL]


def tensors_of(fn: Callable[..., Any], **types: Any) -> Tensors:
    p = to_axes(mi.trace(fn, **types))
    s = Space(p, dict.fromkeys(p.axes, 16), SearchOptions())
    finish(s.close())
    return s.tensors


def stored(t: Tensors) -> set[str]:
    """Whole tensors that kernels may hand on, as abstract expressions of which all parts are summed together."""
    return {_text(x) for x in t.all if not any(a.endswith(".grid") for a in x.axes)}


def _text(x: KernelTensor) -> str:
    text = x.poly.text()
    for a in ("n", "d64", "k", "l"):
        text = text.replace(f"Σ{a}.grid·Σ{a}.loop·Σ{a}.tile", f"Σ{a}")
    return text


def leaves(v: Value, seen: dict[Value, set[object]]) -> set[object]:
    """What a value may be computed from."""
    if v not in seen:
        below = [leaves(u, seen) for d in v.derivations for u in d.operands]
        seen[v] = {v.source} if v.source is not None else set().union(*below)
    return seen[v]


@pytest.mark.parametrize("name", NAMES)
def test_tensors_and_their_producers(name: str) -> None:
    t = space(name).tensors
    assert [x.number for x in t.all] == list(range(len(t.all)))
    assert len({(x.form, x.poly) for x in t.all}) == len(t.all)
    for x in t.all:
        assert x.producers and len(set(x.producers)) == len(x.producers)
        for k, v in x.producers:
            c = t.closures[k]
            assert v in c.values
            # a result is computed, and finished with its loop
            assert v.derivations and not v.varying and (v.after or not c.plan.loops)
            split = (partial_axis(c.plan.split),) if c.plan.split else ()
            assert set(x.axes) == {*split, *v.axes}
            assert (v.form, v.poly) == (x.form, x.poly) or x.outputs
            # what is not an output of the program was reduced
            assert x.form.bound or x.outputs


@pytest.mark.parametrize("name", NAMES)
def test_outputs(name: str) -> None:
    t = space(name).tensors
    program = axes(name)
    for k, (tensor, trivial) in enumerate(zip(t.outputs(), t.trivial, strict=True)):
        assert trivial is None
        if name == "self division":
            assert tensor is None
            continue
        assert tensor is not None and k in tensor.outputs
        assert tensor.form is t.al.targets[program.outputs[k].value][0]
        # the whole program in one kernel, without a loop
        assert any(t.closures[c].plan == NONE for c, _ in tensor.producers)


@pytest.mark.parametrize("name", NAMES)
def test_tensors_are_read_by_all_kernels_that_may(name: str) -> None:
    """Of whatever plan, but those that divide anew the axis that a partial result is over."""
    t = space(name).tensors
    for c in t.closures:
        read = {v.source for v in c.values if isinstance(v.source, KernelTensor)}
        for x in t.all:
            assert (x in read) == (not any(partial_axis(a) in x.axes for a in c.plan.loops)), (x.poly, c.plan)


def test_the_results_of_softmax() -> None:
    """The row sums, the output, and the sums of each split: exps are as large as x, and computed again."""
    t = space("softmax").tensors
    assert stored(t) == {"Σn·e^(x)", "e^(x) / (Σn·e^(x))"}
    (partial,) = [x for x in t.all if x.axes[0] == "n.grid"]
    assert partial.axes == ("n.grid", "m") and not partial.outputs
    assert {t.closures[k].plan for k, _ in partial.producers} == {KernelPlan(("n",), "n")}


def test_elementwise_programs_store_nothing_else() -> None:
    assert stored(space("elementwise").tensors) == {"1 + relu(x)·y"}


def test_results_that_grow_are_computed_where_they_are_used() -> None:
    """Of x - mean: the means, but not their broadcast."""
    assert stored(space("mean").tensors) == {"Σn·x / |n|", "x + Σn·(-1)·x / |n|"}


def test_the_last_of_a_chain_with_constants_is_stored() -> None:
    """rsqrt(sum / n + eps) is as large as the sum: the kernel that reduces does that too."""
    t = space("rms_norm").tensors
    assert len([x for x in t.all if x.axes == ("m",)]) == 1
    t = tensors_of(lambda x: mi.relu(mi.sqrt(mi.sum(x, axis=1) * 2 + 1)), x=T("m", "n"))
    assert len(stored(t)) == 1


def test_what_an_exp_is_applied_to_is_stored_beside_its_result() -> None:
    """A maximum may be needed between the two."""
    t = tensors_of(lambda x, w: mi.exp((x @ w) * 2), x=T("m", "k"), w=T("k", "n"))
    assert stored(t) == {"Σk·2·w·x", "e^(Σk·2·w·x)"}
    t = tensors_of(lambda x, w: mi.relu((x @ w) * 2), x=T("m", "k"), w=T("k", "n"))
    assert stored(t) == {"relu(Σk·2·w·x)"}


def test_both_orders_of_a_chain_of_matmuls() -> None:
    assert {"Σk·a·x", "Σl·a·b"} <= stored(space("chain").tensors)


# Rounds.


def test_one_kernel_reads_the_programs_inputs_only() -> None:
    t = space("gqa_decode", max_kernels=1).tensors
    assert t.all and not any(isinstance(v.source, KernelTensor) for c in t.closures for v in c.values)


@pytest.mark.parametrize("name", ["gqa_decode", "rms_norm", "chain", "cosine"])
def test_more_kernels_read_more_tensors(name: str) -> None:
    """The tensors of fewer kernels are the first of more; the rounds end where nothing new is found."""
    found = [[x.poly.text() for x in space(name, max_kernels=n).tensors.all] for n in (1, 2, 3, 4, 5)]
    for few, many in itertools.pairwise(found):
        assert many[: len(few)] == few
    assert found[3] == found[4]
    assert len(found[0]) < len(found[1]) or name == "rms_norm"


def test_partial_results_of_an_axis_come_of_one_division() -> None:
    for name in NAMES:
        t = space(name).tensors
        for x in t.all:
            partial = [a for a in x.axes if a.endswith(".grid")]
            for k, v in x.producers:
                seen: dict[Value, set[object]] = {}
                for source in leaves(v, seen):
                    # what is read is partial over other axes than this kernel divides
                    if isinstance(source, KernelTensor):
                        assert not {partial_axis(a) for a in t.closures[k].plan.loops} & set(source.axes)
            assert len(partial) == len(set(partial))


# Outputs that no kernel computes.


def test_trivial_outputs() -> None:
    """An input that is an output needs no kernel, though one could copy it tile by tile."""
    t = tensors_of(lambda x: (x - mi.mean(x, axis=1, keepdims=True), x), x=T("m", "n"))
    assert [n and n.op for n in t.trivial] == [None, "input"]
    assert t.outputs()[0] is not None and t.outputs()[1] is None
    assert not any(1 in x.outputs for x in t.all)


def test_equal_outputs_are_one_tensor() -> None:
    t = space("equal outputs").tensors
    first, second = t.outputs()
    assert first is not None and first is second and first.outputs == [0, 1]


def test_an_output_may_be_read() -> None:
    t = space("nested outputs").tensors
    first, second = t.outputs()
    assert first is not None and second is not None
    (no_loop,) = [c for c in t.closures if c.plan == NONE]
    assert first in {v.source for v in no_loop.values}
    assert any(first in leaves(v, {}) for _, v in second.producers)


# Limits.


def test_a_closure_that_is_cut_short() -> None:
    p = axes("gqa_decode")
    s = Space(p, dict.fromkeys(p.axes, 16), SearchOptions())
    list(s.fused())
    # `composer` composes what there is
    assert [a for a in s.composer().compose(1, 2, lambda kernels: [reference_graph(p)]) if a]
    assert not s.complete
    assert all(s.tensors.outputs())
    assert not s.whole
