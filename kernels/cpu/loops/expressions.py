"""Scalar expressions as C: of one element, and of a vector of elements along one loop."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mirage.ir.dims import Dim
from mirage.ir.functions import FUNCTIONS
from mirage.ir.loops.scalars import (
    ARITHMETIC,
    COMPARISONS,
    EXTREMES,
    Apply,
    Binary,
    Cast,
    Checked,
    Const,
    Loop,
    Read,
    Scalar,
    Select,
    Size,
    Unary,
)
from mirage.ir.loops.simplify import Affine, is_index, nonnegative, within
from mirage.ir.loops.traverse import loops_of, walk
from mirage.ir.types import DTYPES, INTEGERS, STORED_INTEGERS
from mirage.kernels.cpu.emit.algebra import literal
from mirage.kernels.cpu.emit.writer import Writer
from mirage.kernels.cpu.loops.access import step
from mirage.kernels.cpu.loops.frame import STORAGE, VALUES, Frame, Tensor, is_half

Env = dict[tuple[Scalar, bool], str]


class Expressions:
    """Prints values at one point of a loop nest: `loops` are the C variables of its loops.

    An expression that is used in several places is computed once per scope: `env` holds what a scope knows.
    """

    def __init__(
        self,
        frame: Frame,
        tensors: Mapping[str, Tensor],
        shapes: Mapping[str, tuple[Dim, ...]],
        extents: Mapping[str, Dim],
        loops: Mapping[str, str],
    ) -> None:
        self.frame = frame
        self.tensors = tensors
        self.shapes = shapes
        self.extents = extents
        self.loops: dict[str, str] = dict(loops)

    # ---- what may be evaluated where ----

    def safe(self, x: Scalar) -> bool:
        """Whether evaluating an expression where it is not needed does no harm: no index can be out of range."""
        for n in walk(x):
            if isinstance(n, Checked):
                return False
            if isinstance(n, Read):
                shape = self.shapes[n.tensor]
                if not all(within(i, d, self.extents) for i, d in zip(n.index, shape, strict=True)):
                    return False
        return True

    def invariants(self, x: Scalar, loop: str) -> list[Scalar]:
        """The largest subexpressions that do not depend on a loop and are evaluated in each of its iterations."""
        found: dict[Scalar, None] = {}
        seen: set[Scalar] = set()
        stack = [x]
        while stack:
            n = stack.pop()
            if n in seen:
                continue
            seen.add(n)
            if loop not in loops_of(n):
                if n.operands:
                    found[n] = None
                continue
            # the branches of a choice are not always evaluated
            stack += [n.condition] if isinstance(n, Select) and not self.safe(n) else n.operands
        return list(found)

    # ---- one element ----

    def scalar(self, x: Scalar, w: Writer, env: Env) -> str:
        """C text of a value; statements that it needs are printed first."""
        key = (x, False)
        if key in env:
            return env[key]
        match x:
            case Const():
                return constant_text(x)
            case Size():
                return self.frame.dim(x.dim)
            case Loop():
                return self.loops[x.name]
            case Checked():
                env[key] = self._checked(x, w, env)
                return env[key]
            case Select() if not self.safe(x):
                env[key] = self._branch(x, w, env, VALUES[x.dtype], None)
                return env[key]
        text = self._scalar(x, w, env)
        if isinstance(x, Binary) and is_index(x):
            return text
        name = self.frame.local()
        w.line(f"const {VALUES[x.dtype]} {name} = {text};")
        env[key] = name
        return name

    def _checked(self, x: Checked, w: Writer, env: Env) -> str:
        index, extent = self.scalar(x.index, w, env), self.frame.dim(x.extent)
        name = self.frame.local("at")
        w.line(f"long {name} = {index};")
        with w.block(f"if (!MI_IN_RANGE({name}, {extent}))"):
            w.line(f"mi_report(args, {self.frame.check(x.where)}, {name}, {extent});")
            w.line("return;")
        w.line(f"if ({name} < 0) {name} += {extent};")
        return name

    def _branch(self, x: Select, w: Writer, env: Env, ctype: str, lanes: tuple[str, str] | None) -> str:
        """A choice as an if statement."""
        condition = self.scalar(x.condition, w, env)
        name = self.frame.local()
        w.line(f"{ctype} {name};")
        for head, value in ((f"if ({condition})", x.then), ("else", x.orelse)):
            with w.block(head):
                inner = dict(env)
                text = self.scalar(value, w, inner) if lanes is None else self.vector(value, w, inner, *lanes)
                w.line(f"{name} = {text};")
        return name

    def _scalar(self, x: Scalar, w: Writer, env: Env) -> str:
        if isinstance(x, Read):
            return self._element(x, w, env)
        a = [self.scalar(o, w, env) for o in x.operands]
        match x:
            case Unary(op="not"):
                return f"!{a[0]}"
            case Unary():
                return f"-{a[0]}" if x.dtype in DTYPES else f"mi_sub{_bits(x)}(0, {a[0]})"
            case Select():
                return f"{a[0]} ? {a[1]} : {a[2]}"
            case Apply():
                return self._apply(x, a[0])
            case Cast():
                return self._cast(x, a[0])
            case Binary():
                return self._binary(x, a)
        raise AssertionError(x)

    def _binary(self, x: Binary, a: list[str]) -> str:
        op = x.op
        if op in COMPARISONS:
            return f"({a[0]} {COMPARISONS[op]} {a[1]})"
        if op in ("and", "or"):
            return f"({a[0]} {'&' if op == 'and' else '|'} {a[1]})"
        if op in EXTREMES:
            if x.dtype in DTYPES:
                return f"mi_{'maximum' if op == 'max' else 'minimum'}_{VALUES[x.dtype]}({a[0]}, {a[1]})"
            return f"({a[0]} {'>' if op == 'max' else '<'} {a[1]} ? {a[0]} : {a[1]})"
        if x.dtype in DTYPES or (is_index(x) and op in ("add", "sub", "mul")):
            return f"({a[0]} {ARITHMETIC[op]} {a[1]})"
        if op in ("floordiv", "mod") and self._plain_division(x):
            return f"({a[0]} {'/' if op == 'floordiv' else '%'} {a[1]})"
        return f"mi_{op}{_bits(x)}({a[0]}, {a[1]})"

    def _plain_division(self, x: Binary) -> bool:
        """Whether C's division is the same: nothing is negative, and the divisor is a number that is not 0."""
        if not is_index(x) or not isinstance(x.right, Const) or int(x.right.value) <= 0:
            return False
        bounds = Affine.of(x.left).bounds(self.extents)
        return bounds is not None and nonnegative(bounds[0])

    def _element(self, x: Read, w: Writer, env: Env) -> str:
        t = self.tensors[x.tensor]
        if t.value:
            return t.value
        element = f"{t.pointer}[{self._offset(t, x.index, w, env)}]"
        return f"mi_from_{t.dtype}({element})" if is_half(t.dtype) else element

    def _offset(self, t: Tensor, index: tuple[Scalar, ...], w: Writer, env: Env) -> str:
        assert t.pointer, "what a variable holds has no memory"
        terms = []
        for i, stride in zip(index, t.strides, strict=True):
            if not stride or (isinstance(i, Const) and i.value == 0):
                continue
            text = self.scalar(i, w, env)
            terms.append(text if stride == "1L" else f"{text} * {stride}")
        return " + ".join(terms) or "0"

    def _apply(self, x: Apply, a: str) -> str:
        parameters = "".join(f", mi_broadcast({literal(p)})" for p in x.parameters)
        text = f"{self.frame.functions.use(FUNCTIONS[x.function])}(mi_broadcast({a}){parameters})[0]"
        return text if x.dtype == self.frame.real else f"({VALUES[x.dtype]}){text}"

    def _cast(self, x: Cast, a: str) -> str:
        source = x.x.dtype
        if x.to == "bool":
            return f"({a} != 0)"
        if x.to in INTEGERS and source in DTYPES:
            return f"mi_to_{x.to}({a})"
        if x.to in STORED_INTEGERS:
            whole = f"mi_to_int64({a})" if source in DTYPES else a
            return f"(long)({STORAGE[x.to]}){whole}"
        if is_half(x.to):
            return f"mi_from_{x.to}(mi_to_{x.to}((float){a}))"
        return f"({VALUES[x.to]}){a}"

    # ---- vectors ----

    def vectorizable(self, x: Scalar, loop: str) -> bool:
        """Whether `vector` can print an expression along a loop."""
        return all(
            self._has_vector(n, loop) for n in walk(x) if loop in loops_of(n) and not self._is_in_index(x, n)
        )

    def _is_in_index(self, root: Scalar, n: Scalar) -> bool:
        """Whether a subexpression occurs in indices of reads alone."""
        seen: set[Scalar] = set()
        stack = [root]
        while stack:
            m = stack.pop()
            if m is n:
                return False
            if m not in seen:
                seen.add(m)
                stack += () if isinstance(m, Read) else m.operands
        return True

    def _has_vector(self, n: Scalar, loop: str) -> bool:
        match n:
            case Loop():
                return True
            case Read():
                return self._has_vector_read(n, loop)
            case Checked():
                return False
            case Unary():
                return n.dtype in (self.frame.real, "bool", "int64")
            case Binary():
                if n.op in COMPARISONS:
                    # lanes of booleans are 0 and -1, whose order is the opposite
                    ordered = (self.frame.real, *INTEGERS)
                    return n.left.dtype in (ordered if n.op not in ("eq", "ne") else (*ordered, "bool"))
                if n.dtype == "int64":
                    return n.op in ("add", "sub", "mul")
                return n.dtype in (self.frame.real, "bool")
            case Select():
                if n.dtype not in (self.frame.real, "bool", *INTEGERS):
                    return False
                return loop not in loops_of(n.condition) or (self.safe(n.then) and self.safe(n.orelse))
            case Apply():
                return n.dtype == self.frame.real
            case Cast():
                if is_half(n.to):
                    return n.to == self.frame.half and n.x.dtype == self.frame.real
                if n.to == self.frame.real:
                    return n.x.dtype in ("bool", *INTEGERS)
                if n.to == "bool":
                    return n.x.dtype in (self.frame.real, *INTEGERS)
                return n.to == "int64" and n.x.dtype in ("bool", *INTEGERS)
        return False

    def _has_vector_read(self, n: Read, loop: str) -> bool:
        t = self.tensors[n.tensor]
        if t.dtype not in (self.frame.real, self.frame.half, "bool", *INTEGERS, *STORED_INTEGERS):
            return False
        steps = [step(i, loop) for i in n.index]
        if any(s is None for s in steps):
            return False
        moving = [(s, stride) for s, stride in zip(steps, t.strides, strict=True) if s != 0 and stride]
        unit = moving == [(1, "1L")]
        return unit or t.dtype in (self.frame.real, self.frame.half)

    def vector(self, x: Scalar, w: Writer, env: Env, loop: str, lanes: str) -> str:
        """C text of the values for lanes from the loop's current index on; no `lanes` means all."""
        if loop not in loops_of(x):
            return self._broadcast(x, self.scalar(x, w, env))
        key = (x, True)
        if key not in env:
            if isinstance(x, Select) and loop not in loops_of(x.condition):
                env[key] = self._branch(x, w, env, self.vector_type(x.dtype), (loop, lanes))
            else:
                name = self.frame.local()
                text = self._vector(x, w, env, loop, lanes)
                w.line(f"const {self.vector_type(x.dtype)} {name} = {text};")
                env[key] = name
        return env[key]

    def vector_type(self, dtype: str) -> str:
        return "mi_ivec" if dtype == "bool" else "mi_long" if dtype in INTEGERS else "mi_vec"

    def _broadcast(self, x: Scalar, text: str) -> str:
        kind = "_bool" if x.dtype == "bool" else "_int" if x.dtype in INTEGERS else ""
        return f"mi_broadcast{kind}({text})"

    def _vector(self, x: Scalar, w: Writer, env: Env, loop: str, lanes: str) -> str:
        match x:
            case Loop():
                return f"mi_lanes_from({self.loops[loop]})"
            case Read():
                return self._load(x, w, env, loop, lanes)
            case Cast(x=Read(type="int32") as read) if x.to == self.frame.real:
                return self._load(read, w, env, loop, lanes, "_real")
        a = [self.vector(o, w, env, loop, lanes) for o in x.operands]
        match x:
            case Unary():
                return f"~{a[0]}" if x.op == "not" else f"-{a[0]}"
            case Select():
                kind = "_bool" if x.dtype == "bool" else "_int" if x.dtype in INTEGERS else ""
                return f"mi_select{kind}({a[0]}, {a[1]}, {a[2]})"
            case Apply():
                more = "".join(f", mi_broadcast({literal(p)})" for p in x.parameters)
                return f"{self.frame.functions.use(FUNCTIONS[x.function])}({a[0]}{more})"
            case Cast():
                return self._vector_cast(x, a[0])
            case Binary():
                if x.op in COMPARISONS:
                    text = f"{a[0]} {COMPARISONS[x.op]} {a[1]}"
                    return f"mi_as_bool({text})" if x.left.dtype in INTEGERS else f"(mi_ivec)({text})"
                if x.op in EXTREMES and x.dtype in DTYPES:
                    return f"mi_{'maximum' if x.op == 'max' else 'minimum'}({a[0]}, {a[1]})"
                symbol = {"and": "&", "or": "|", "max": "|", "min": "&", **ARITHMETIC}[x.op]
                return f"{a[0]} {symbol} {a[1]}"
        raise AssertionError(x)

    def _vector_cast(self, x: Cast, a: str) -> str:
        source = x.x.dtype
        if is_half(x.to):
            return f"mi_widen(mi_to_narrow({a}))"
        if x.to == "bool":
            return f"mi_as_bool({a} != 0)" if source in INTEGERS else f"(mi_ivec)({a} != 0)"
        if x.to in DTYPES:
            return f"mi_bool_to_real({a})" if source == "bool" else f"mi_int_to_real({a})"
        return f"mi_bool_to_int({a})" if source == "bool" else a

    def _load(self, x: Read, w: Writer, env: Env, loop: str, lanes: str, to: str = "") -> str:
        t = self.tensors[x.tensor]
        if t.value:
            # the only element, where a branch reads it in every lane
            return f"mi_broadcast({t.value})" if to else self._broadcast(x, t.value)
        at = f"{t.pointer} + {self._offset(t, x.index, w, env)}"
        n = ", " + lanes if lanes else ""
        tail = "_n" if lanes else ""
        if t.dtype in ("bool", *INTEGERS, *STORED_INTEGERS):
            return f"mi_load_{t.dtype}{to}{tail}({at}{n})"
        narrow = "_narrow" if is_half(t.dtype) else ""
        steps = []
        for i, stride in zip(x.index, t.strides, strict=True):
            grows = step(i, loop)
            if grows is not None and grows != 0 and stride:
                text = self.frame.dim(grows)
                steps.append(stride if text == "1L" else f"{text} * {stride}")
        if steps == ["1L"]:
            return f"mi_load{narrow}{tail}({at}{n})"
        return f"mi_load{narrow}_strided{tail}({at}, {' + '.join(steps) or '0'}{n})"

    def store(self, t: Tensor, index: tuple[Scalar, ...], value: str, w: Writer, env: Env, lanes: str | None) -> None:
        """Print the store of a vector along the last dim, or without `lanes` (None) of one element."""
        at = self._offset(t, index, w, env)
        if lanes is None:
            value = f"mi_to_{t.dtype}({value})" if is_half(t.dtype) else value
            w.line(f"{t.pointer}[{at}] = {value};")
            return
        kind = f"_{t.dtype}" if t.dtype in ("bool", *INTEGERS) else "_narrow" if is_half(t.dtype) else ""
        if lanes:
            w.line(f"mi_store{kind}_n({t.pointer} + {at}, {value}, {lanes});")
        else:
            w.line(f"mi_store{kind}({t.pointer} + {at}, {value});")


def _bits(x: Scalar) -> str:
    return "32" if x.dtype == "int32" else "64"


def constant_text(c: Const) -> str:
    """A constant as C text."""
    value = c.value
    if c.type == "bool":
        return str(int(value))
    if c.type in INTEGERS:
        suffix, number = "" if c.type == "int32" else "L", int(value)
        # C has no negative literals, so that the least integer is not one
        return f"{number}{suffix}" if number >= 0 else f"({number + 1}{suffix} - 1)"
    suffix = "f" if c.type == "float32" else ""
    if isinstance(value, float):
        text = f'__builtin_nan{suffix}("")' if math.isnan(value) else f"__builtin_inf{suffix}()"
        return f"(-{text})" if value < 0 else text
    return f"{float(value)!r}{suffix}" if value >= 0 else f"({float(value)!r}{suffix})"
