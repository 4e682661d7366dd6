"""The rules that come with the package, by subject. Each is checked in floats and finite fields by the tests, as those that
users add are before they are accepted (`verify/rules/trial.py`).

The ring's rules do not change exact forms. They bring terms next to one another that others apply to, and choose forms by cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from mirage.verify.rules.pattern import INNER, OUTER, Pattern, as_pattern, call, number, size_, sum_, var
from mirage.verify.rules.rule import Fact, Rule

_x, _y, _z, _w = (var(v, INNER, OUTER) for v in "xyzw")
#: the same for all terms of an inner sum
_c = var("c", OUTER)
_a, _b = number("a"), number("b")
_p, _q = number("p"), number("q")
_HALF = as_pattern(Fraction(1, 2))


def _exp(x: Pattern) -> Pattern:
    return call("exp", x)


def _log(x: Pattern) -> Pattern:
    return call("log", x)


def _sqrt(x: Pattern) -> Pattern:
    return call("sqrt", x)


def _abs(x: Pattern) -> Pattern:
    return call("abs", x)


def _relu(x: Pattern) -> Pattern:
    return call("relu", x)


def _maximum(x: Pattern, *least: Pattern) -> Pattern:
    return call("maximum", x, *least)


def _clamp(x: Pattern, least: Pattern, most: Pattern) -> Pattern:
    return call("clamp", x, least, most)


def _pow(x: Pattern, exponent: Pattern) -> Pattern:
    return call("pow", x, exponent)


def _sigmoid(x: Pattern) -> Pattern:
    return call("sigmoid", x)


def _tanh(x: Pattern) -> Pattern:
    return call("tanh", x)


def _sin(x: Pattern) -> Pattern:
    return call("sin", x)


def _cos(x: Pattern) -> Pattern:
    return call("cos", x)


def _both(name: str, lhs: Pattern, rhs: Pattern, back: str, **when: Fact) -> Iterator[Rule]:
    """A rule, and the same from right to left by its own name."""
    yield Rule(name, lhs, rhs, when)
    yield Rule(back, rhs, lhs, when)


def _cancellation() -> Iterator[Rule]:
    yield Rule("quotient of equals", _x / _x, as_pattern(1))
    yield Rule("cancel a factor", (_x * _y) / _y, _x)
    yield Rule("multiply back", (_x / _y) * _y, _x)
    yield Rule("cancel a common factor", (_x * _z) / (_y * _z), _x / _y)
    yield Rule("cancel a divisor", _x / (_x * _y), 1 / _y)
    yield Rule("divide by a quotient", _x / (_y / _z), (_x * _z) / _y)
    yield Rule("cancel terms", _x + -_x, as_pattern(0))
    yield Rule("sum with zero", _x + 0, _x)
    yield Rule("product with one", 1 * _x, _x)
    yield Rule("divide by one", _x / 1, _x)
    yield Rule("product with zero", 0 * _x, as_pattern(0))
    yield Rule("quotient of zero", 0 / _x, as_pattern(0))
    yield Rule("x + x", _x + _x, 2 * _x)
    yield Rule("x + a x", _x + _a * _x, (1 + _a) * _x)
    yield Rule("a x + b x", _a * _x + _b * _x, (_a + _b) * _x)
    yield Rule("divide by a constant", _x / _a, (1 / _a) * _x, {"a": "nonzero"})


def _exponentials() -> Iterator[Rule]:
    yield from _both("product of exps", _exp(_x) * _exp(_y), _exp(_x + _y), "exp of a sum")
    yield from _both("quotient of exps", _exp(_x) / _exp(_y), _exp(_x - _y), "exp of a difference")
    yield from _both("reciprocal of an exp", 1 / _exp(_x), _exp(-_x), "exp of a negative")
    yield Rule("exp of 0", _exp(as_pattern(0)), as_pattern(1))
    yield Rule("log of an exp", _log(_exp(_x)), _x)
    yield Rule("exp of a log", _exp(_log(_x)), _x)
    yield Rule("log of 1", _log(as_pattern(1)), as_pattern(0))
    yield from _both("log of a product", _log(_x * _y), _log(_x) + _log(_y), "sum of logs")
    yield from _both("log of a quotient", _log(_x / _y), _log(_x) - _log(_y), "difference of logs")
    yield Rule("log of a root", _log(_sqrt(_x)), _HALF * _log(_x))
    yield Rule("exp of a scaled log", _exp(_a * _log(_x)), _pow(_x, _a))


def _roots() -> Iterator[Rule]:
    yield Rule("square of a root", _sqrt(_x) * _sqrt(_x), _x)
    yield Rule("root of a square", _sqrt(_x * _x), _abs(_x))
    yield from _both("product of roots", _sqrt(_x) * _sqrt(_y), _sqrt(_x * _y), "root of a product")
    yield from _both("quotient of roots", _sqrt(_x) / _sqrt(_y), _sqrt(_x / _y), "root of a quotient")
    yield Rule("divide by the own root", _x / _sqrt(_x), _sqrt(_x))
    yield Rule("root of an exp", _sqrt(_exp(_x)), _exp(_HALF * _x))


def _powers() -> Iterator[Rule]:
    """Powers by small whole numbers, and by halves of them, are products and roots."""
    yield Rule("power of an exp", _pow(_exp(_x), _a), _exp(_a * _x))
    yield Rule("log of a power", _log(_pow(_x, _a)), _a * _log(_x), {"x": "positive"})
    yield Rule("divide by a power", _x / _pow(_y, _a), _x * _pow(_y, -_a))
    yield Rule("product of powers", _pow(_x, _a) * _pow(_x, _b), _pow(_x, _a + _b))
    yield Rule("product with a power", _x * _pow(_x, _a), _pow(_x, 1 + _a))
    yield Rule("power of a power", _pow(_pow(_x, _a), _b), _pow(_x, _a * _b), {"x": "nonnegative"})
    yield Rule("power of a root", _pow(_sqrt(_x), _a), _pow(_x, _HALF * _a))
    yield Rule("root of a power", _sqrt(_pow(_x, _a)), _pow(_x, _HALF * _a), {"x": "nonnegative"})
    yield Rule(
        "product of equal powers", _pow(_x, _a) * _pow(_y, _a), _pow(_x * _y, _a), {"x": "nonnegative", "y": "nonnegative"}
    )


def _bounds() -> Iterator[Rule]:
    """Minima are maxima of negatives."""
    yield Rule("maximum of a maximum", _maximum(_maximum(_x, _a), _b), _maximum(_x, _maximum(_a, _b)))
    yield Rule("clamp of a clamp", _clamp(_clamp(_x, _a, _b), _p, _q), _clamp(_x, _clamp(_a, _p, _q), _clamp(_b, _p, _q)))
    yield Rule("maximum of a clamp", _maximum(_clamp(_x, _a, _b), _p), _clamp(_x, _maximum(_a, _p), _maximum(_b, _p)))
    yield Rule("clamp of a maximum", _clamp(_maximum(_x, _p), _a, _b), _clamp(_x, _clamp(_p, _a, _b), _b))
    yield Rule("minimum of a maximum", -_maximum(-_maximum(_x, _a), _b), _clamp(_x, -_maximum(-_a, _b), -_b))
    yield Rule("maximum of a minimum", _maximum(-_maximum(-_x, _a), _b), _clamp(_x, _b, _maximum(-_a, _b)))
    yield Rule("relu and a constant", _relu(_x) + _a, _maximum(_x + _a, _a))


def _squares() -> Iterator[Rule]:
    yield Rule("square of a sum", 2 * (_x * _y) + (_x * _x + _y * _y), (_x + _y) * (_x + _y))
    yield Rule("square of a difference", -2 * (_x * _y) + (_x * _x + _y * _y), (_x - _y) * (_x - _y))
    yield Rule("difference of squares", _x * _x - _y * _y, (_x - _y) * (_x + _y))
    yield Rule(
        "complete a square", _a * _x + _x * _x, (_x + _HALF * _a) * (_x + _HALF * _a) - (_HALF * _a) * (_HALF * _a)
    )


def _absolute() -> Iterator[Rule]:
    yield Rule("abs of what is not negative", _abs(_x), _x, {"x": "nonnegative"})
    yield Rule("abs of a negative", _abs(-_x), _abs(_x))
    yield from _both("product of abs", _abs(_x) * _abs(_y), _abs(_x * _y), "abs of a product")
    yield from _both("quotient of abs", _abs(_x) / _abs(_y), _abs(_x / _y), "abs of a quotient")
    yield Rule("square of an abs", _abs(_x) * _abs(_x), _x * _x)
    yield Rule("abs of a relu", _abs(_relu(_x)), _relu(_x))
    yield Rule("relu of what is not negative", _relu(_x), _x, {"x": "nonnegative"})
    yield Rule("relus of both signs", _relu(_x) + _relu(-_x), _abs(_x))
    yield Rule("difference of relus", _relu(_x) - _relu(-_x), _x)
    yield Rule("x and relu of -x", _x + _relu(-_x), _relu(_x))
    yield Rule("relu less x", _relu(_x) - _x, _relu(-_x))
    yield Rule("x and its abs", _x + _abs(_x), 2 * _relu(_x))
    yield Rule("square of a relu", _relu(_x) * _relu(_x), _x * _relu(_x))
    yield from _both(
        "relu of a scaled", _relu(_x * _y), _x * _relu(_y), "scaled relu", x="nonnegative"
    )
    yield from _both("maximum with 0", call("maximum", _x, Fraction(0)), _relu(_x), "relu as a maximum")


def _smooth() -> Iterator[Rule]:
    yield Rule("sigmoid by exp of -x", 1 / (1 + _exp(-_x)), _sigmoid(_x))
    yield Rule("sigmoid of -x by exp", 1 / (1 + _exp(_x)), _sigmoid(-_x))
    yield Rule("sigmoid by exp of x", _exp(_x) / (1 + _exp(_x)), _sigmoid(_x))
    yield Rule("sigmoid by a softmax of two", _exp(_x) / (_exp(_x) + _exp(_y)), _sigmoid(_x - _y))
    yield Rule("one less a sigmoid", 1 - _sigmoid(_x), _sigmoid(-_x))
    yield Rule("sigmoids of both signs", _sigmoid(_x) + _sigmoid(-_x), as_pattern(1))
    yield Rule("log of a sigmoid", _log(_sigmoid(_x)), -_log(1 + _exp(-_x)))
    yield Rule("softplus less x", _log(1 + _exp(_x)) - _x, _log(1 + _exp(-_x)))
    yield Rule("tanh by a sigmoid", 2 * _sigmoid(2 * _x) + -1, _tanh(_x))
    yield Rule("tanh by exps", (_exp(_x) - _exp(-_x)) / (_exp(_x) + _exp(-_x)), _tanh(_x))
    yield Rule("tanh by one exp", (_exp(2 * _x) + -1) / (_exp(2 * _x) + 1), _tanh(_x))
    yield Rule("tanh of a negative", _tanh(-_x), -_tanh(_x))
    yield Rule("half and half a tanh", _HALF * (1 + _tanh(_x)), _sigmoid(2 * _x))
    yield Rule("half and half a tanh, apart", _HALF + _HALF * _tanh(_x), _sigmoid(2 * _x))
    yield Rule("squares of sine and cosine", _sin(_x) * _sin(_x) + _cos(_x) * _cos(_x), as_pattern(1))
    yield Rule("one less a square of a sine", 1 - _sin(_x) * _sin(_x), _cos(_x) * _cos(_x))
    yield Rule("one less a square of a cosine", 1 - _cos(_x) * _cos(_x), _sin(_x) * _sin(_x))
    yield Rule("sine of a sum", _sin(_x) * _cos(_y) + _cos(_x) * _sin(_y), _sin(_x + _y))
    yield Rule("sine of a difference", _sin(_x) * _cos(_y) - _cos(_x) * _sin(_y), _sin(_x - _y))
    yield Rule("cosine of a sum", _cos(_x) * _cos(_y) - _sin(_x) * _sin(_y), _cos(_x + _y))
    yield Rule("cosine of a difference", _cos(_x) * _cos(_y) + _sin(_x) * _sin(_y), _cos(_x - _y))
    yield Rule("sine of twice", _sin(_x) * _cos(_x), _HALF * _sin(2 * _x))


def _concats() -> Iterator[Rule]:
    p, q = var("p", "j_0"), var("q", "j_1")
    r, s = var("r", "j_0"), var("s", "j_1")
    c = var("c")

    def joined(x: Pattern, y: Pattern) -> Pattern:
        return Pattern("concat", "j", (x, y))

    yield Rule("sum of concats", joined(p, q) + joined(r, s), joined(p + r, q + s))
    yield Rule("product of concats", joined(p, q) * joined(r, s), joined(p * r, q * s))
    yield Rule("scaled concat", c * joined(p, q), joined(c * p, c * q))
    yield Rule("concat of scaled", joined(c * p, c * q), c * joined(p, q))
    yield Rule("concat and the same added", c + joined(p, q), joined(c + p, c + q))
    yield Rule("sum over a concat", sum_(joined(p, q), "j"), sum_(p, "j_0") + sum_(q, "j_1"))
    for fn in ("exp", "log", "sqrt", "relu", "sigmoid", "tanh", "abs"):
        yield Rule(f"{fn} of a concat", call(fn, joined(p, q)), joined(call(fn, p), call(fn, q)))
        yield Rule(f"{fn} of the pieces", joined(call(fn, p), call(fn, q)), call(fn, joined(p, q)))


def _ring() -> Iterator[Rule]:
    yield Rule("move a product", (_x * _y) * _z, _x * (_y * _z))
    yield Rule("move a sum", (_x + _y) + _z, _x + (_y + _z))
    yield from _both("factor out", _x * _y + _x * _z, _x * (_y + _z), "multiply out")
    yield Rule("factor out of x", _x + _x * _y, _x * (1 + _y))
    yield Rule("sum of the same", sum_(_c), _c * size_())
    yield Rule("factor out of a sum", sum_(_c * _x, OUTER, INNER), sum_(_c * sum_(_x), OUTER))
    yield Rule("multiply into a sum", _c * sum_(_x), sum_(_c * _x))
    yield Rule("divide a sum", sum_(_x / _c, OUTER, INNER), sum_(sum_(_x) / _c, OUTER))
    yield Rule("divide the terms of a sum", sum_(_x) / _c, sum_(_x / _c))
    yield from _both("add sums", sum_(_x) + sum_(_y), sum_(_x + _y), "sum of sums")
    yield from _both("divide a product", (_x * _y) / _z, _x * (_y / _z), "multiply a quotient")
    yield from _both("add quotients", _x / _z + _y / _z, (_x + _y) / _z, "divide terms")
    yield from _both("divide twice", (_x / _y) / _z, _x / (_y * _z), "divide by a product")
    yield Rule("add reciprocals", 1 / _x + 1 / _y, (_x + _y) / (_x * _y))
    yield Rule("multiply quotients", (_x / _y) * (_z / _w), (_x * _z) / (_y * _w))


#: the subject of the rules of the ring
RING = "Sums, products and quotients"
#: the rules, by subject
SUBJECTS: dict[str, tuple[Rule, ...]] = {
    "Cancellation": tuple(_cancellation()),
    "Exponentials and logarithms": tuple(_exponentials()),
    "Roots": tuple(_roots()),
    "Powers": tuple(_powers()),
    "Absolute values and relus": tuple(_absolute()),
    "Maxima and clamps": tuple(_bounds()),
    "Sigmoids and trigonometry": tuple(_smooth()),
    "Concats": tuple(_concats()),
    "Squares": tuple(_squares()),
    RING: tuple(_ring()),
}
