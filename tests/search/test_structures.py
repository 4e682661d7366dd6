"""The graphs that the paper names are found: each test looks at structure, never at names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mirage as mi
from benchmarks.programs import PROGRAMS
from mirage.ir.axes import to_axes
from mirage.mugraph.graph import Graph, MuGraph, Node, Role
from mirage.mugraph.validate import validate
from mirage.search.generate import generate
from mirage.verify.proof import prove
from tests.programs import axes, block, producer, search, where
from tests.sampled import thinned


def found(name: str, wanted: Callable[[MuGraph], bool], **options: Any) -> list[MuGraph]:
    return [g for g in search(name, **options).graphs if wanted(g)]


def in_loop(g: Graph, *ops: str) -> list[int]:
    """Nodes with one of these operators that run in every iteration."""
    return [i for i in where(g, *ops) if i in g.in_loop]


def after(g: Graph, *ops: str) -> list[int]:
    """Nodes with one of these operators that run after the loop."""
    return [i for i in where(g, *ops) if i in g.after_loop]


def accumulated(g: Graph) -> list[str]:
    """What the accumulators sum, by the operator that yields it."""
    nodes = where(g, "accumulator")
    assert all(g.nodes[i].attr["mode"] == "sum" for i in nodes)
    return sorted(producer(g, i).op for i in nodes)


def roots(g: Graph, i: int) -> set[int]:
    """The inputs of the kernel that node i depends on."""
    n = g.nodes[i]
    if n.op == "input":
        return {n.attr["index"]}
    return set().union(*(roots(g, r.node) for r in n.operands)) if n.operands else set()


def result(g: Graph) -> Node:
    (out,) = g.outputs
    return g.nodes[out.node]


# Attention.


def attention_loop(g: Graph) -> bool:
    """The loop of FlashAttention: per tile of keys exp(q k), its sum, and its product with v."""
    return (
        [g.nodes[i].op for i in in_loop(g, "exp")] == ["exp"]
        and not after(g, "exp")
        and accumulated(g) == ["matmul", "sum"]
        and all(producer(g, i).reduce == ("t",) for i in where(g, "accumulator"))
    )


def is_flash_attention(g: MuGraph) -> bool:
    if len(g.kernels) != 1:
        return False
    b = block(g)
    return (
        b.loop == ("t",)
        and attention_loop(b)
        and after(b, "div") == [b.outputs[0].node]
        and {producer(b, b.outputs[0].node, k).op for k in (0, 1)} == {"accumulator"}
    )


def test_flash_attention() -> None:
    graphs = found("gqa_decode", is_flash_attention)
    assert graphs
    for g in graphs:
        b = block(g)
        assert b.role["t"] is Role.LOOP
        assert {b.role[a] for a in ("b", "h", "d8", "s")} == {Role.PARALLEL}
        q, k, v = (b.nodes[i] for i in b.inputs)
        # the heads of a group share keys and values: nothing is repeated
        assert "d8" in q.axes()
        assert "d8" not in k.axes() and "d8" not in v.axes()
        assert b.imap(b.inputs[1])["d8"] is None and b.fmap(b.inputs[1])["t"] is not None


def test_query_groups_are_rows_of_the_matmul() -> None:
    """Fig. 4c: the queries that share keys are rows of one product, so that keys are loaded once for all of them."""
    graphs = [g for g in search("gqa_decode").graphs if is_flash_attention(g) or is_flash_decoding(g)]
    assert len(graphs) >= 2
    for g in graphs:
        b = block(g)
        for product, wanted in (((0, 1), ("d128",)), ((0, 1, 2), ("t",))):
            (i,) = [i for i in where(b, "matmul") if roots(b, i) == set(product)]
            assert b.nodes[i].reduce == wanted
            rows, shared = sorted((set(producer(b, i, k).axes()) for k in (0, 1)), key=lambda axes: "d8" not in axes)
            # keys and values have no axis of their own for the group, and nothing repeats them
            assert "d8" in b.nodes[i].axes() and "d8" in rows and "d8" not in shared


def attention_of_itself(x: Any) -> Any:
    return mi.softmax(x @ mi.transpose(x, (1, 0))) @ x


def test_attention_of_a_tensor_to_itself() -> None:
    """softmax(x x') x: one kernel reads x twice, by rows and in tiles of a loop."""
    p = to_axes(mi.trace(attention_of_itself, x=mi.tensor("n", 64)))
    r = generate(p, {"n": 4096})
    assert all(prove(p, g) == "proved" for g in r.graphs)
    rows, tiles = p.inputs
    assert rows.argument == tiles.argument == "x"

    def wanted(g: MuGraph) -> bool:
        if len(g.kernels) != 1:
            return False
        b = block(g)
        return (
            b.loop == tiles.dims[0] and accumulated(b) == ["matmul", "sum"] and after(b, "div") == [b.outputs[0].node]
        )

    graphs = list(filter(wanted, r.graphs))
    assert graphs
    for g in graphs:
        assert block(g).role[rows.dims[0][0]] is Role.PARALLEL
        assert len(block(g).inputs) == 2


@pytest.mark.parametrize("name", ["mha_decode", "mqa_decode"])
def test_flash_attention_for_other_heads(name: str) -> None:
    assert found(name, is_flash_attention)


def is_flash_decoding(g: MuGraph) -> bool:
    if len(g.kernels) != 2:
        return False
    first, second = block(g, 0), block(g, 1)
    if first.role.get("t") is not Role.SPLIT or not attention_loop(first) or len(first.outputs) != 2:
        return False
    sums = [i for i in where(second, "sum") if second.nodes[i].reduce == ("t.grid",)]
    out = second.outputs[0].node
    return (
        len(sums) == 2
        and second.nodes[out].op == "div"
        and {r.node for r in second.nodes[out].operands} == set(sums)
        and not second.loop
    )


def test_flash_decoding() -> None:
    graphs = found("gqa_decode", is_flash_decoding)
    assert graphs
    for g in graphs:
        assert g.kernels[0].dims[0][0] == g.kernels[0].dims[1][0] == ("t.grid",)
        assert "t.grid" not in g.kernels[1].axes()
        assert "t" in block(g, 0).grid and "t" in block(g, 0).loop


def test_attention_over_normalized_queries_and_keys() -> None:
    """QKNorm (paper, section 8.2): both norms, in the kernel of FlashAttention; keys are normalised per tile."""

    def wanted(g: MuGraph) -> bool:
        if len(g.kernels) != 1:
            return False
        b = block(g)
        norms = where(b, "rsqrt")
        return (
            b.loop == ("t",)
            and attention_loop(b)
            and len(norms) == 2
            and [roots(b, i) for i in norms if i in b.in_loop] == [{1}]
            and [roots(b, i) for i in norms if i not in b.in_loop and i not in b.after_loop] == [{0}]
        )

    assert found("qknorm_attention", wanted, max_kernels=1)


# Normalisation and linear layers.


def is_rmsnorm_linear(g: MuGraph) -> bool:
    """Fig. 8: sum of squares and matmul accumulate in one loop; the norm is applied to the product after it."""
    if len(g.kernels) != 1:
        return False
    b = block(g)
    if b.loop != ("d4096",) or len(where(b, "accumulator")) != 2:
        return False
    products = [i for i in in_loop(b, "matmul") if roots(b, i) >= {0, 2}]
    norms = after(b, "rsqrt")
    out = result(b)
    return (
        len(products) == 1
        and len(norms) == 1
        and out.op in ("mul", "div")
        and {b.nodes[r.node].op for r in out.operands} == {"accumulator", "rsqrt"}
    )


def test_rmsnorm_linear_in_one_kernel() -> None:
    graphs = found("rmsnorm_linear", is_rmsnorm_linear)
    assert graphs
    # without the fusion, x would be read twice, or the matmul would wait for the norm
    assert all(len(block(g).inputs) == 3 for g in graphs)


def test_gated_mlp_in_one_kernel() -> None:
    def wanted(g: MuGraph) -> bool:
        if len(g.kernels) != 1:
            return False
        b = block(g)
        return (
            b.loop == ("d4096",)
            and accumulated(b) == ["matmul", "matmul"]
            and len(after(b, "silu")) == 1
            and result(b).op == "mul"
            and len(b.inputs) == 3
        )

    assert found("gated_mlp", wanted)


def test_lora_in_one_kernel() -> None:
    """Fig. 9b in effect: one pass over x for both products, the low-rank one finished after the loop."""

    def wanted(g: MuGraph) -> bool:
        if len(g.kernels) != 1:
            return False
        b = block(g)
        return (
            b.loop == ("d4096",)
            and accumulated(b) == ["matmul", "matmul"]
            and [b.nodes[i].reduce for i in after(b, "matmul")] == [("d16",)]
            and result(b).op == "add"
        )

    assert found("lora", wanted)


def test_lora_as_a_matmul_of_concats() -> None:
    """Fig. 9b: [x, x @ down] @ [w; up], so that the sum of the two products is never written apart."""

    def wanted(g: MuGraph) -> bool:
        if len(g.kernels) != 1:
            return False
        b = block(g)
        both = where(b, "concat_matmul")
        return len(both) == 1 and not where(b, "add") and len(b.compute_nodes()) == 2

    graphs = found("lora", wanted)
    assert graphs
    for g in graphs:
        b = block(g)
        (i,) = where(b, "concat_matmul")
        assert set(b.nodes[i].reduce) == {"d4096", "d16"}
        pairs = [{k: roots(b, b.nodes[i].operands[k].node) for k in pair} for pair in ((0, 2), (1, 3))]
        assert sorted(sorted(map(sorted, pair.values())) for pair in pairs) == [[[0], [1]], [[0, 2], [3]]]


def test_adapter_with_partial_sums() -> None:
    """Fig. 10b: the first matmul's reduction is split over blocks; the second kernel finishes it and does the rest."""

    def wanted(g: MuGraph) -> bool:
        if len(g.kernels) != 2:
            return False
        first, second = block(g, 0), block(g, 1)
        if first.role.get("d4096") is not Role.SPLIT or accumulated(first) != ["matmul"]:
            return False
        ops = [second.nodes[i].op for i in second.compute_nodes()]
        totals = [n.reduce for n in second.nodes if n.op == "sum"]
        return sorted(ops) == ["add", "matmul", "relu", "sum"] and totals == [("d4096.grid",)]

    graphs = found("adapter_mlp", wanted)
    assert graphs
    for g in graphs:
        second = block(g, 1)
        # the axis that the first kernel reduced is an axis of the result
        assert second.role["d4096"] is Role.PARALLEL
        assert result(second).op == "add"


def test_experts_in_one_kernel() -> None:
    """A gated MLP and the layer after it, looping over the hidden units."""

    def wanted(g: MuGraph) -> bool:
        if len(g.kernels) != 1:
            return False
        b = block(g)
        return b.loop == ("f",) and accumulated(b) == ["matmul"] and len(in_loop(b, "matmul")) == 3

    graphs = found("moe", wanted)
    assert graphs
    assert all(b.role["e"] is Role.PARALLEL for b in map(block, graphs))


def test_softmax_with_partial_sums() -> None:
    """Each block sums part of a row; the second kernel adds the sums and divides."""

    def wanted(g: MuGraph) -> bool:
        if len(g.kernels) != 2 or block(g, 0).role.get("n") is not Role.SPLIT:
            return False
        second = block(g, 1)
        return result(second).op == "div" and [n.reduce for n in second.nodes if n.op == "sum"] == [("n.grid",)]

    (g,) = found("softmax", wanted)
    assert len(block(g, 0).outputs) == 1


def test_joined_tiles() -> None:
    """RMS norm reads x once: the loop sums its squares and joins its tiles, which the norm is applied to after it."""

    def wanted(g: MuGraph) -> bool:
        if len(g.kernels) != 1:
            return False
        b = block(g)
        modes = {b.nodes[i].attr["mode"]: producer(b, i).op for i in where(b, "accumulator")}
        return b.loop == ("n",) and set(modes) == {"sum", "concat"} and modes["sum"] == "sum"

    graphs = found("rms_norm", wanted, vocabulary="program")
    assert graphs
    for g in graphs:
        b = block(g)
        assert len(after(b, "rsqrt")) == 1
        assert result(b).op == "mul" and "n" in result(b).axes()
        (joined,) = [i for i in where(b, "accumulator") if b.nodes[i].attr["mode"] == "concat"]
        assert "n" in b.nodes[joined].axes()


def test_a_loop_over_two_axes() -> None:
    """The norm of a matrix: one kernel sums over rows and columns together, the next one divides by it."""

    def wanted(g: MuGraph) -> bool:
        return len(g.kernels) == 2 and set(block(g).loop) == {"b", "n"} and not block(g).grid

    graphs = found("frobenius", wanted)
    assert graphs
    for g in graphs:
        first, second = block(g, 0), block(g, 1)
        assert len(accumulated(first)) == 1 and after(first, "sqrt")
        assert first.nodes[first.outputs[0].node].axes() == ()
        assert [second.nodes[i].op for i in second.compute_nodes()] == ["div"]


def test_a_loop_over_two_axes_with_partial_sums() -> None:
    def wanted(g: MuGraph) -> bool:
        if len(g.kernels) < 2:
            return False
        b = block(g)
        return set(b.loop) == {"b", "n"} and Role.SPLIT in b.role.values()

    for g in found("frobenius", wanted):
        (split,) = [a for a, role in block(g).role.items() if role is Role.SPLIT]
        (partial,) = g.kernels[0].dims[0]
        assert partial == (f"{split}.grid",)
        assert [n.reduce for n in block(g, 1).nodes if n.op == "sum"] == [(f"{split}.grid",)]
    assert found("frobenius", wanted)


def test_norm_transformer_in_one_kernel() -> None:
    """nGPT (paper, section 8.1): both norms and all that is between them; x and h are read once."""

    def wanted(g: MuGraph) -> bool:
        return len(g.kernels) == 1 and len(where(block(g), "rsqrt")) == 2 and len(block(g).inputs) == 3

    graphs = found("norm_transformer", wanted)
    assert graphs
    for g in graphs:
        b = block(g)
        first, second = where(b, "rsqrt")
        assert roots(b, first) == {1} and roots(b, second) == {0, 1, 2}
        assert b.role["b"] is Role.PARALLEL


# Every measured program.


@pytest.mark.parametrize("name", thinned(PROGRAMS))
def test_every_program_is_fused(name: str) -> None:
    graphs = search(name).graphs
    whole = {n.op for n in axes(name).nodes} - {"input", "constant", "size"}
    fused = [g for g in graphs if len(g.kernels) == 1]
    assert fused
    for g in graphs:
        validate(g)
        assert prove(axes(name), g) == "proved"
        assert all(len(block(g, k).compute_nodes()) >= 1 for k in range(len(g.kernels)))
    # one kernel does what took one per operator; a sum of products may be a matmul
    whole |= {"accumulator", "concat_matmul", "matmul"}
    assert all({block(g).nodes[i].op for i in block(g).compute_nodes()} <= whole for g in fused)
    assert max(len(block(g).compute_nodes()) for g in fused) > 1
