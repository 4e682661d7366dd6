"""Programs with one mistake each, of data types, matches, functions as values, recursion or references."""

_BODY = "def main(xs: List[float32[n]], x: float32[n], t: Tree[float32[n]], c: bool[()]):\n    with dataflow():\n"
_REST = """

def empty():
    with dataflow():
        zero = int64[()](0)
    return zero


def first(x: float32[n]):
    return x


def second(x: float32[n], y: float32[n]):
    with dataflow():
        z = add(x, y)
    return z


def whole(x: int64[()]):
    return x


def cell(x: float32[n], rest: List[float32[n]]):
    return x


def called(f: Callable[[float32[n]], float32[n]], x: float32[n]):
    with dataflow():
        y = apply[f](x)
    return y


def paired(x: a, y: a) -> Tuple[a, a]:
    with dataflow():
        r = (x, y)
    return r


def same(x: a) -> a:
    return x


def sized(x: float32[4], *, k: Dim):
    return x


def noisy(x: float32[n]):
    y = packed["log", Object](x)
    return x
"""


def _main(*lines: str, head: str = _BODY, indent: int = 8) -> str:
    body = "".join(f"{' ' * indent}{line}\n" for line in lines)
    return f"{head}{body}    return {lines[-1].split(' ')[0].rstrip(':')}\n{_REST}"


def _effects(*lines: str) -> str:
    return _main(*lines, head=_BODY.splitlines(keepends=True)[0], indent=4)


def _data(*lines: str) -> str:
    return "\n".join(lines) + "\n\n\ndef main(x: float32[n]):\n    return x\n"


def _recursive(result: str, *lines: str) -> str:
    body = "".join(f"        {line}\n" for line in lines)
    last = lines[-1].split(" ")[0]
    head = f"def f(x: float32[n], c: bool[()]){result}:\n    with dataflow():\n{body}    return {last}\n"
    again = "        r = call[f](x, c)\n"
    return "\n\n".join(
        [
            _function("main", again),
            head,
            "def base(x: float32[n], c: bool[()]):\n    return x\n",
            _function("again", again),
            _function("wrapped", again + "        r0 = (r, x)\n", "r0"),
            _function("nothing", "        r = Nothing()\n"),
            _function("some", again + "        r0 = Some(r)\n", "r0"),
        ]
    )


def _function(name: str, body: str, result: str = "r") -> str:
    return f"def {name}(x: float32[n], c: bool[()]):\n    with dataflow():\n{body}    return {result}\n"


def _open(*lines: str, parameters: str = "x", rest: str = "") -> str:
    body = "".join(f"        {line}\n" for line in lines)
    head = f"def main({parameters}):\n    with dataflow():\n{body}    return {lines[-1].split(' ')[0]}\n"
    return f"{head}\n\n{rest}" if rest else head


_TWICE = "def twice(f, x):\n    with dataflow():\n        y = apply[f](x)\n        z = apply[f](y)\n    return z\n"
_SQUARED = "def squared(x):\n    with dataflow():\n        y = square(x)\n    return y\n"

WRONG: dict[str, str] = {
    # data types
    "no constructor": _data("class Empty:", "    pass"),
    "constructor in small letters": _data("class Pair(a):", "    def pair(x: a): ..."),
    "type in small letters": _data("class pair(a):", "    def Pair(x: a): ..."),
    "reserved name": _data("class Tensor(a):", "    def One(x: a): ..."),
    "name of the prelude": _data("class List(a):", "    def One(x: a): ..."),
    "constructor of the prelude": _data("class Pair(a):", "    def Cons(x: a): ..."),
    "constructor twice": _data("class Pair(a):", "    def One(x: a): ...", "    def One(y: a): ..."),
    "field twice": _data("class Pair(a):", "    def One(x: a, x: a): ..."),
    "parameter twice": _data("class Pair(a, a):", "    def One(x: a): ..."),
    "unknown parameter": _data("class Pair(a):", "    def One(x: b): ..."),
    "unknown type": _data("class Pair(a):", "    def One(x: Heap[a]): ..."),
    "type arguments": _data("class Pair(a):", "    def One(x: List[a, a]): ..."),
    "no type argument": _data("class Pair(a):", "    def One(x: Tree): ..."),
    "dim in a declaration": _data("class Pair:", "    def One(x: float32[n]): ..."),
    "no finite value": _data("class Stream(a):", "    def Next(x: a, rest: Stream[a]): ..."),
    "no finite value of two": _data("class A:", "    def OfB(b: B): ...", "class B:", "    def OfA(a: A): ..."),
    "declared twice": _data("class A:", "    def B(): ...", "class A:", "    def C(): ..."),
    "body of a constructor": _data("class A:", "    def B():", "        return 1"),
    "field without annotation": _data("class A:", "    def B(x): ..."),
    "unknown type of a parameter": "def main(x: Heap[float32[n]]):\n    return x\n",
    "type of main": "def main(x: a):\n    return x\n",
    # constructors
    "unknown constructor": _main("r = Snoc(xs, x)"),
    "number of fields": _main("r = Cons(x)"),
    "kinds of items": _main("c1 = Cons(c, xs)"),
    "list of two kinds": _main("e = Nil()", "i = int64[()](1)", "a = Cons(i, e)", "b = Cons(x, a)"),
    "field of another type": _main("r = Rose(x, x)"),
    "tree in a list": _main("r = Cons(t, xs)"),
    "keyword of a constructor": _main("r = Cons(x, tail=xs)"),
    "constant without element type": _main("k = constant(value=1)", "e = Nil()", "r = Cons(k, e)"),
    "annotation of a list": _main("r: List[int64[()]] = Cons(x, xs)"),
    # matches
    "case left out": _main("r = match[Cons(h, _): first](xs)"),
    "nested case left out": _main("r = match[Nil(): empty, Cons(_, Cons(_, _)): empty](xs)"),
    "case of a tuple left out": _main("p = (xs, t)", "r = match[(Nil(), _): empty, (_, Leaf(_)): empty](p)"),
    "clause never reached": _main("r = match[Nil(): empty, _: empty, Cons(_, _): empty](xs)"),
    "clause reached by none left": _main("r = match[Cons(_, _): empty, Nil(): empty, _: empty](xs)"),
    "clause twice": _main("r = match[Nil(): empty, Nil(): empty, Cons(_, _): empty](xs)"),
    "pattern of another type": _main("r = match[Leaf(v): first, _: empty](xs)"),
    "fields of a pattern": _main("r = match[Nil(): empty, Cons(h): first](xs)"),
    "pattern of a tensor": _main("r = match[Nil(): empty, _: empty](x)"),
    "pattern of a tuple": _main("p = (x, x)", "r = match[(_, _, _): empty](p)"),
    "unknown constructor of a pattern": _main("r = match[None_(): empty, _: empty](xs)"),
    "name twice in a pattern": _main("p = (x, x)", "r = match[(h, h): second](p)"),
    "clauses of different kinds": _main("r = match[Nil(): empty, Cons(h, k): cell](xs)"),
    "parameters of a clause": _main("r = match[Nil(): empty, Cons(h, k): first](xs)"),
    "parameter of a clause": _main("r = match[Nil(): empty, Cons(_, k): first](xs)"),
    "unknown function of a clause": _main("r = match[Nil(): empty, _: other](xs)"),
    "no function in a match": _main("r = match[Nil(), _](xs)"),
    "number as a pattern": _main("r = match[1: empty, _: empty](xs)"),
    # functions as values
    "call of a tensor": _main("r = apply[x](x)"),
    "arguments of a value": _main("f = closure[first]()", "r = apply[f](x, x)"),
    "argument of a value": _main("f = closure[whole]()", "r = apply[f](x)"),
    "captured too many": _main("f = closure[first](x, x)"),
    "captured of another kind": _main("f = closure[second](c)"),
    "closure of an unknown function": _main("f = closure[other](x)"),
    "shape argument of a closure": _main("f = closure[sized]()"),
    "closure of any type": _main("f = closure[same]()"),
    "function of another type": _main("f = closure[whole]()", "r = call[called](f, x)"),
    "function of another number": _main("f = closure[second]()", "r = call[called](f, x)"),
    "function with effects": _main("f = closure[noisy]()", "r = call[called](f, x)"),
    "effects in a dataflow block": _main("f = closure[noisy]()", "r = apply[f](x)"),
    "function as a result of main": _main("f = closure[first]()"),
    "two kinds for one type": _main("r = call[paired](x, c)"),
    # recursion
    "never returns": _recursive("", "r = call[f](x, c)"),
    "never returns through others": _recursive("", "r = if_else[again, again](c, x, c)"),
    "branches of different kinds": _recursive("", "r = if_else[base, wrapped](c, x, c)"),
    "declared as another": _recursive(" -> int64[()]", "r = if_else[base, again](c, x, c)"),
    "grows": _recursive("", "r = if_else[base, again](c, x, c)", "e = Nil()", "s = Cons(r, e)"),
    "grows for ever": _recursive("", "r = if_else[nothing, some](c, x, c)"),
    "arguments of itself": _recursive("", "r = call[f](x)"),
    # parameters without annotations
    "nothing tells a type": "def main(x):\n    return x\n",
    "nothing tells an element type": _open("r = exp(x)"),
    "nothing tells a rank": _open("y = reshape(x, shape=(4,))", "r = add(y, v)", parameters="x, v: float32[4]"),
    "two element types": _open("y = add(x, v)", "r = add(x, k)", parameters="x, v: float32[4], k: int64[4]"),
    "two ranks": _open("y = transpose(x, perm=(1, 0))", "z = transpose(x, perm=(1, 0, 2))", "r = exp(x)"),
    "tensor and tuple": _open("t = (x, v)", "y = item[0](t)", "r = add(t, v)", parameters="x, v: float32[4]"),
    "function and tensor": _open("y = apply[x](v)", "r = add(x, v)", parameters="x, v: float32[4]"),
    "function of itself": _open("r = apply[x](x)"),
    "two types of a function that is called": _open(
        "f = closure[squared]()", "r = call[twice](f, x)", parameters="x: bool[n]", rest=f"{_TWICE}\n\n{_SQUARED}"
    ),
    "condition of another type": _open("y = exp(x)", "z = mul(y, v)", "r = where(x, v, v)", parameters="x, v: float32[4]"),
    "type that grows with every call": _open(
        "r = call[f](x, c)", parameters="x: float32[n], c: bool[()]",
        rest="def f(x, c):\n    with dataflow():\n        r = if_else[done, again](c, x, c)\n    return r\n\n\n"
        "def done(x, c):\n    return c\n\n\n"
        "def again(x, c):\n    with dataflow():\n        s = Some(x)\n        r = call[f](s, c)\n    return r\n",
    ),
    "dims that do not fit": _open("y = matmul(x, v)", "r = matmul(x, w)", parameters="x, v: float32[4, 8], w: float32[5, 8]"),
    # references
    "reference in a dataflow block": _main("r = reference[new](x)"),
    "read of a tensor": _effects("r = reference[read](x)"),
    "write of another kind": _effects("p = reference[new](x)", "r = reference[write](p, c)"),
    "reference as a result of main": _effects("r = reference[new](x)"),
    "unknown effect on a reference": _effects("r = reference[swap](x)"),
}
