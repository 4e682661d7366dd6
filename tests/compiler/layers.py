"""Modules that several tests of the compiler use, as text."""

#: a decoder layer: rms norm, grouped-query attention with an additive mask, gated MLP
DECODER = """
def main(
    x: float32[b, s, 32], norm: float32[32], wq: float32[32, 32], wk: float32[32, 16], wv: float32[32, 16],
    wo: float32[32, 32], mask: float32[s, s], w1: float32[32, 48], w3: float32[32, 48], w2: float32[48, 32],
) -> float32[b, s, 32]:
    with dataflow():
        y = rms_norm(x, norm, axis=-1, eps=1e-06)
        q0 = matmul(y, wq)
        q1 = reshape(q0, shape=(b, s, 4, 8))
        q = transpose(q1, perm=(0, 2, 1, 3))
        k0 = matmul(y, wk)
        k1 = reshape(k0, shape=(b, s, 2, 8))
        k2 = transpose(k1, perm=(0, 2, 3, 1))
        k = repeat(k2, axis=1, times=2)
        v0 = matmul(y, wv)
        v1 = reshape(v0, shape=(b, s, 2, 8))
        v2 = transpose(v1, perm=(0, 2, 1, 3))
        v = repeat(v2, axis=1, times=2)
        scores = matmul(q, k)
        scale = constant(value=1/8)
        scaled = mul(scores, scale)
        masked = add(scaled, mask)
        weights = softmax(masked, axis=-1)
        o0 = matmul(weights, v)
        o1 = transpose(o0, perm=(0, 2, 1, 3))
        o = reshape(o1, shape=(b, s, 32))
        p = matmul(o, wo)
        h = add(x, p)
        z = rms_norm(h, norm, axis=-1, eps=1e-06)
        g0 = matmul(z, w1)
        g1 = silu(g0)
        u = matmul(z, w3)
        g = mul(g1, u)
        d = matmul(g, w2)
        out = add(h, d)
    return out
"""

#: names of the parameters of DECODER that never change
WEIGHTS = ("norm", "wq", "wk", "wv", "wo", "w1", "w3", "w2")
