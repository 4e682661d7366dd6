"""Modules whose parameters have no annotations: those of other modules taken off, and some of their own."""

from __future__ import annotations

import ast


def without_annotations(text: str, main: str = "main") -> str:
    """The module without annotations of parameters, results and bindings, but for the parameters of the main function.

    Functions with extra shape parameters keep theirs.
    """
    tree = ast.parse(text)
    for f in tree.body:
        if not isinstance(f, ast.FunctionDef) or f.args.kwonlyargs:
            continue
        if f.name != main and not any(isinstance(d, ast.Name) and d.id == "main" for d in f.decorator_list):
            for a in f.args.args:
                a.annotation = None
        f.returns = None
        for block in f.body:
            if isinstance(block, ast.With):
                block.body = [_plain(s) for s in block.body]
        f.body = [_plain(s) for s in f.body]
    return ast.unparse(tree)


def _plain(s: ast.stmt) -> ast.stmt:
    if isinstance(s, ast.AnnAssign) and s.value is not None:
        return ast.copy_location(ast.Assign([s.target], s.value), s)
    return s


#: operators, and what is found of `x`, from both sides
BOTH_WAYS: dict[str, tuple[str, str]] = {
    "operand of a sum": ("r = add(x, a)", "float32[n, 4]"),
    "larger operand": ("r = add(x, b)", "float32[4]"),
    "factor on the left": ("r = matmul(x, w)", "float32[d0, 4]"),
    "factor on the right": ("r = matmul(a, x)", "float32[4, d0]"),
    "condition": ("r = where(x, a, a)", "bool[n, 4]"),
    "choice": ("r = where(c, x, a)", "float32[n, 4]"),
    "comparison": ("p = less(x, a)\nr = where(p, a, a)", "float32[n, 4]"),
    "norm": ("y = rms_norm(x, axis=-1, eps=0.5)\nr = add(y, a)", "float32[n, 4]"),
    "weight of a norm": ("r = rms_norm(a, x, axis=-1, eps=0.5)", "float32[4]"),
    "what is transposed": ("y = transpose(x, perm=(1, 0))\nr = add(y, a)", "float32[4, n]"),
    "what is summed": ("y = sum(x, axes=(0,), keepdims=False)\nr = matmul(y, w)", "float32[d0, d1, 4]"),
    "maximum": ("y = max(x, axes=(1,), keepdims=True)\nz = add(y, a)\nr = matmul(x, w)", "float32[n, 4]"),
    "what is joined": ("r = concat(x, a, axis=0)", "float32[d0, 4]"),
    "running sum": ("y = cumsum(x, axis=0)\nr = add(y, a)", "float32[n, 4]"),
    "number beside": ("k = constant(value=2)\ny = mul(x, k)\nr = add(y, a)", "float32[n, 4]"),
    "item of a tuple": ("t = (x, c)\ny = item[0](t)\nr = add(y, a)", "float32[n, 4]"),
    "value of a reference": ("p = reference[new](x)\ny = reference[read](p)\nr = add(y, a)", "float32[n, 4]"),
    "item of a list": ("e = Nil()\nl = Cons(a, e)\nr = Cons(x, l)", "float32[n, 4]"),
    "function": ("y = apply[x](a, c)\nr = add(y, b)", "Callable[[float32[n, 4], bool[n, 4]], float32[4]]"),
    "state of a loop": ("r = loop[step]((x,), (a,), count=3)", "float32[n, 4]"),
}


def both_ways(lines: str) -> str:
    """A module whose function `f` has these lines, and a parameter `x` without annotation."""
    body = "".join(f"    {line}\n" for line in lines.splitlines())
    result = lines.splitlines()[-1].split(" ")[0]
    parameters = "a: float32[n, 4], b: float32[4], c: bool[n, 4], w: float32[4, 8]"
    step = "def step(i: int64[()], s, y):\n    with dataflow():\n        r = add(s, y)\n    return r\n"
    used = f"\n\n{step}" if "step" in lines else ""
    return f"def main({parameters}):\n    return a\n\n\ndef f(x, {parameters}):\n{body}    return {result}\n{used}"
