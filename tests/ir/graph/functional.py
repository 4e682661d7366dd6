"""Modules with data types, functions as values and recursion, as text."""

#: every form of expression that has to do with them, and a data type of its own
SHOWCASE = """class Expr(a):
    def Literal(value: a): ...
    def Sum(left: Expr[a], right: Expr[a]): ...
    def Many(terms: List[Expr[a]]): ...


def main(e: Expr[float32[n]], x: float32[n]) -> Tuple[float32[n], int64[()], float32[n]]:
    with dataflow():
        zero: float32[n] = sub(x, x)
        f: Callable[[float32[n]], float32[n]] = closure[shifted](x, dims=(n,))
        y: float32[n] = call[value](e, f, zero)
        pair: Tuple[Expr[float32[n]], Expr[float32[n]]] = (e, e)
        depth: int64[()] = match[(Literal(_), _): none, (Sum(_, b), other): two, (Many(_), _): none](pair, y)
    r: Ref[float32[n]] = reference[new](y)
    w: Ref[float32[n]] = reference[write](r, x)
    z: float32[n] = reference[read](w)
    result: Tuple[float32[n], int64[()], float32[n]] = (y, depth, z)
    return result


def shifted(y: float32[n], x: float32[n], *, k: Dim) -> float32[n]:
    with dataflow():
        z: float32[n] = add(y, x)
    return z


def value(e: Expr[float32[n]], f: Callable[[float32[n]], float32[n]], zero: float32[n]) -> float32[n]:
    with dataflow():
        v: float32[n] = match[Literal(x): literal, Sum(l, r): both, Many(Nil()): nil, Many(Cons(t, ts)): many](e, f, zero)
    return v


def literal(x: float32[n], f: Callable[[float32[n]], float32[n]], zero: float32[n]) -> float32[n]:
    with dataflow():
        y: float32[n] = apply[f](x)
    return y


def both(l: Expr[float32[n]], r: Expr[float32[n]], f: Callable[[float32[n]], float32[n]], zero: float32[n]) -> float32[n]:
    with dataflow():
        a: float32[n] = call[value](l, f, zero)
        b: float32[n] = call[value](r, f, zero)
        s: float32[n] = add(a, b)
    return s


def nil(f: Callable[[float32[n]], float32[n]], zero: float32[n]) -> float32[n]:
    return zero


def many(t: Expr[float32[n]], ts: List[Expr[float32[n]]], f: Callable[[float32[n]], float32[n]], zero: float32[n]) -> float32[n]:
    with dataflow():
        a: float32[n] = call[value](t, f, zero)
        rest: Expr[float32[n]] = Many(ts)
        b: float32[n] = call[value](rest, f, zero)
        s: float32[n] = add(a, b)
    return s


def none(y: float32[n]) -> int64[()]:
    with dataflow():
        zero: int64[()] = int64[()](0)
    return zero


def two(b: Expr[float32[n]], other: Expr[float32[n]], y: float32[n]) -> int64[()]:
    with dataflow():
        r: int64[()] = int64[()](2)
    return r
"""

SUM = """
def main(xs: List[float32[n]], zero: float32[n]):
    with dataflow():
        v = call[total](xs, zero)
    return v


def total(xs: List[float32[n]], zero: float32[n]):
    with dataflow():
        v = match[Nil(): empty, Cons(x, rest): more](xs, zero)
    return v


def empty(zero: float32[n]):
    return zero


def more(x: float32[n], rest: List[float32[n]], zero: float32[n]):
    with dataflow():
        y = call[total](rest, zero)
        z = add(x, y)
    return z
"""

COUNT = """
def main(n: int64[()]) -> List[int64[()]]:
    with dataflow():
        v = Nil()
        r = call[count](n, v)
    return r


def count(n: int64[()], found: List[int64[()]]) -> List[int64[()]]:
    with dataflow():
        one = int64[()](1)
        p = less(n, one)
        r = if_else[done, again](p, n, found)
    return r


def done(n: int64[()], found: List[int64[()]]) -> List[int64[()]]:
    return found


def again(n: int64[()], found: List[int64[()]]) -> List[int64[()]]:
    with dataflow():
        one = int64[()](1)
        m = sub(n, one)
        more = Cons(n, found)
        r = call[count](m, more)
    return r
"""

MAP = """
def main(xs: List[float32[n]], w: float32[n]):
    with dataflow():
        f = closure[scaled](w)
        ys = call[map](f, xs)
    return ys


def scaled(x: float32[n], w: float32[n]):
    with dataflow():
        y = mul(x, w)
    return y


def map(f: Callable[[a], b], xs: List[a]) -> List[b]:
    with dataflow():
        ys: List[b] = match[Nil(): nothing, Cons(x, rest): cell](xs, f)
    return ys


def nothing(f: Callable[[a], b]) -> List[b]:
    with dataflow():
        ys: List[b] = Nil()
    return ys


def cell(x: a, rest: List[a], f: Callable[[a], b]) -> List[b]:
    with dataflow():
        y: b = apply[f](x)
        ys: List[b] = call[map](f, rest)
        r: List[b] = Cons(y, ys)
    return r
"""

EVEN = """
def main(n: int64[()]) -> bool[()]:
    with dataflow():
        r = call[even](n)
    return r


def even(n: int64[()]):
    with dataflow():
        zero = int64[()](0)
        p = equal(n, zero)
        r = if_else[yes, odd_below](p, n)
    return r


def odd(n: int64[()]):
    with dataflow():
        zero = int64[()](0)
        p = equal(n, zero)
        r = if_else[no, even_below](p, n)
    return r


def even_below(n: int64[()]):
    with dataflow():
        one = int64[()](1)
        m = sub(n, one)
        r = call[even](m)
    return r


def odd_below(n: int64[()]):
    with dataflow():
        one = int64[()](1)
        m = sub(n, one)
        r = call[odd](m)
    return r


def yes(n: int64[()]):
    with dataflow():
        r = greater_equal(n, n)
    return r


def no(n: int64[()]):
    with dataflow():
        r = less(n, n)
    return r
"""

CHOSEN = """
def main(p: bool[()], x: float32[n], xs: List[float32[n]]):
    with dataflow():
        f = if_else[once, twice](p, x)
        y = apply[f](x)
        ys = Cons(y, xs)
    return ys


def once(x: float32[n]):
    with dataflow():
        f = closure[added](x)
    return f


def twice(x: float32[n]):
    with dataflow():
        y = add(x, x)
        f = closure[added](y)
    return f


def added(x: float32[n], y: float32[n]):
    with dataflow():
        z = add(x, y)
    return z
"""
