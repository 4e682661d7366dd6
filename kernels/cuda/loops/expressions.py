"""Scalar expressions as Triton code over blocks of elements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

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
from mirage.kernels.cuda.emit.values import bare
from mirage.kernels.cuda.emit.writer import Writer
from mirage.kernels.cuda.loops.access import offset
from mirage.kernels.cuda.loops.frame import STORAGE, VALUES, Frame, LoopTensor
from mirage.kernels.cuda.loops.functions import HELPERS, call
from mirage.kernels.cuda.loops.printing import bare_constant, is_number, ordered, parenthesized, times, typed

#: characters of an expression from which on it is given a name
_LONG = 60


class Value(NamedTuple):
    """Text of a Triton value, and the dims of the tile that it has: of 1 and 2, the sum; 0 for a scalar."""

    text: str
    span: int


class Tile:
    """The block of elements that a program computes at once: extents of dims (text), and masks of what is past the end.

    Dims are 1 (of a tile of two dims, the first) and 2 (the last); a tile of one dim has either.
    """

    def __init__(self, extents: Mapping[int, str]) -> None:
        self.extents = dict(extents)
        self.masks: dict[int, str] = {}

    def shape(self) -> str:
        return f"[{', '.join(self.extents.values())}]"

    def full(self) -> int:
        """The span of a value that has all dims."""
        return sum(self.extents)

    def lift(self, dim: int) -> str:
        """The index that makes a vector along a dim one of the tile."""
        return "" if len(self.extents) == 1 else "[:, None]" if dim == 1 else "[None, :]"

    def mask(self, span: int) -> list[str]:
        """The masks of the dims of a span."""
        return [m for d, m in self.masks.items() if span & d]


class Expressions:
    """Prints values of the elements of a tile. `loops` are the indices of loops (None: walked by the next loop), `values` those
    of rows that stages have computed. Equal expressions are computed once per scope: `env` holds what is known.
    """

    def __init__(
        self,
        frame: Frame,
        tile: Tile,
        extents: Mapping[str, Dim],
        bodies: Iterable[Scalar],
        w: Writer,
    ) -> None:
        self.frame = frame
        self.tile = tile
        self.extents = extents
        self.w = w
        self.loops: dict[str, Value | None] = {}
        self.values: dict[str, Value] = {}
        self.env: dict[tuple[Scalar, Value | None], Value] = {}
        self._valid: dict[tuple[Scalar, Value | None], Value] = {}
        self._safe: dict[Scalar, bool] = {}
        roots = list(bodies)
        self._uses = Counter(roots)
        for n in {n for b in roots for n in walk(b)}:
            self._uses.update(n.operands)
        self._names: Counter[str] = Counter()

    # ---- names ----

    def local(self, prefix: str) -> str:
        """A new name of a variable."""
        self._names[prefix] += 1
        return f"{prefix}{self._names[prefix] - 1}"

    def assign(self, prefix: str, value: Value) -> Value:
        """A variable with this value."""
        name = self.local(prefix)
        self.w.line(f"{name} = {bare(value.text)}")
        return Value(name, value.span)

    def span(self, loops: Iterable[str]) -> int:
        found = 0
        for n in loops:
            v = self.loops.get(n)
            found |= v.span if v is not None else 0
        return found

    # ---- values ----

    def value(self, x: Scalar, active: Value | None = None) -> Value:
        """The value of an expression in its type: of indices, that of loops. Where `active` does not hold it may be anything."""
        if active is not None and self.safe(x):
            active = None
        key = (x, active)
        if key in self.env:
            return self.env[key]
        found = self._value(x, active)
        if x.operands and not isinstance(x, Read | Checked) and (self._uses[x] > 1 or len(found.text) > _LONG):
            found = self.assign("v", found)
        self.env[key] = found
        return found

    def named(self, x: Scalar) -> None:
        """Compute an expression here, for what follows."""
        key = (x, None)
        if key not in self.env:
            found = self.value(x)
            self.env[key] = found if found.text.isidentifier() else self.assign("v", found)

    def data(self, x: Scalar, active: Value | None = None) -> Value:
        """The value in the expression's own type: an index as int64."""
        if isinstance(x, Const):
            return Value(typed(x), 0)
        v = self.value(x, active)
        if is_index(x) and self.frame.index != "i64":
            return Value(f"{parenthesized(v.text)}.to(tl.int64)", v.span)
        return v

    def _pair(self, a: Scalar, b: Scalar, active: Value | None) -> tuple[Value, Value]:
        """Two operands of one type: a number among them needs no type of its own."""
        if isinstance(a, Const) and not isinstance(b, Const):
            return Value(bare_constant(a), 0), self.data(b, active)
        if isinstance(b, Const) and not isinstance(a, Const):
            return self.data(a, active), Value(bare_constant(b), 0)
        return self.data(a, active), self.data(b, active)

    def safe(self, x: Scalar) -> bool:
        """Whether evaluating an expression where it is not needed does no harm: no index can be out of range."""
        if x not in self._safe:
            self._safe[x] = all(self.safe(o) for o in x.operands) and self._safe_itself(x)
        return self._safe[x]

    def _safe_itself(self, x: Scalar) -> bool:
        if isinstance(x, Checked):
            return False
        if isinstance(x, Read) and x.tensor not in self.values:
            shape = self.frame.tensors[x.tensor].shape
            return all(within(i, d, self.extents) for i, d in zip(x.index, shape, strict=True))
        return True

    def _value(self, x: Scalar, active: Value | None) -> Value:
        match x:
            case Const():
                return Value(str(x.value) if is_index(x) else typed(x), 0)
            case Size():
                return Value(self.frame.dim(x.dim), 0)
            case Loop():
                found = self.loops[x.name]
                assert found is not None, x.name
                return found
            case Read():
                return self._read(x, active)
            case Checked():
                return self._checked(x, active)
            case Select():
                return self._select(x, active)
            case Binary():
                return self._binary(x, active)
        (operand,) = x.operands
        a = self.value(operand, active) if is_index(x) else self.data(operand, active)
        text = parenthesized(a.text)
        match x:
            case Unary():
                return Value(f"(~{text})" if x.op == "not" else f"(-{text})", a.span)
            case Apply():
                text = call(self.frame.functions, FUNCTIONS[x.function], bare(a.text), x.parameters, x.dtype)
                return Value(text, a.span)
            case Cast():
                return Value(self._cast(x, text), a.span)
        raise AssertionError(x)

    def _cast(self, x: Cast, a: str) -> str:
        source = x.x.dtype
        if x.to == "bool":
            return f"({a} != 0)"
        if x.to in INTEGERS and source in DTYPES:
            return f"{self.helper(f'to_{x.to}')}({bare(a)})"
        if x.to in STORED_INTEGERS:
            whole = f"{self.helper('to_int64')}({bare(a)})" if source in DTYPES else a
            return f"{whole}.to({VALUES[x.to]}).to(tl.int64)"
        if x.to in DTYPES and x.dtype != x.to:
            wide = f"{a}.to(tl.float32)" if source != "float32" else a
            return f"{wide}.to({VALUES[x.to]}).to(tl.float32)"
        return f"{a}.to({VALUES[x.to]})"

    def helper(self, name: str) -> str:
        return self.frame.use(name, HELPERS[name])

    def _binary(self, x: Binary, active: Value | None) -> Value:
        op = x.op
        if is_index(x):
            return self._index(x, active)
        if op in COMPARISONS and is_index(x.left) and is_index(x.right):
            a, b = self.value(x.left, active), self.value(x.right, active)
        else:
            a, b = self._pair(x.left, x.right, active)
        span = a.span | b.span
        boolean = x.left.dtype == "bool"
        if op in COMPARISONS:
            texts = [ordered(v.text) if boolean else v.text for v in (a, b)]
            return Value(f"({texts[0]} {COMPARISONS[op]} {texts[1]})", span)
        if op in ("and", "or") or (boolean and op in EXTREMES):
            return Value(f"({a.text} {'&' if op in ('and', 'min') else '|'} {b.text})", span)
        if op in EXTREMES:
            name = "maximum" if op == "max" else "minimum"
            if x.dtype == "float64":
                a, b = self.data(x.left, active), self.data(x.right, active)
                return Value(f"{self.helper(f'nan_{op}')}({bare(a.text)}, {bare(b.text)})", span)
            nan = ", propagate_nan=tl.PropagateNan.ALL" if x.dtype in DTYPES else ""
            return Value(f"tl.{name}({bare(a.text)}, {bare(b.text)}{nan})", span)
        if op in ("floordiv", "mod"):
            a, b = self.data(x.left, active), self.data(x.right, active)
            return Value(f"{self.helper(f'floor_{op[-3:]}')}({bare(a.text)}, {bare(b.text)})", span)
        return Value(f"({a.text} {ARITHMETIC[op]} {b.text})", span)

    def _index(self, x: Binary, active: Value | None) -> Value:
        """Arithmetic of indices, in the type of loops."""
        a, b = self.value(x.left, active), self.value(x.right, active)
        span = a.span | b.span
        if x.op in ("floordiv", "mod") and not self._plain_division(x):
            texts = [f"tl.full([], {v.text}, {self.index_type})" if is_number(v.text) else bare(v.text) for v in (a, b)]
            return Value(f"{self.helper(f'floor_{x.op[-3:]}')}({', '.join(texts)})", span)
        return Value(f"({a.text} {ARITHMETIC[x.op]} {b.text})", span)

    @property
    def index_type(self) -> str:
        return "tl.int64" if self.frame.index == "i64" else "tl.int32"

    def _plain_division(self, x: Binary) -> bool:
        """Whether truncation is the same as rounding down: nothing is negative."""
        if not isinstance(x.right, Const | Size) or not nonnegative(Affine.of(x.right).const):
            return False
        bounds = Affine.of(x.left).bounds(self.extents)
        return bounds is not None and nonnegative(bounds[0])

    def _select(self, x: Select, active: Value | None) -> Value:
        condition = self.data(x.condition, active)
        if self.safe(x.then) and self.safe(x.orelse):
            a, b = self.data(x.then), self.data(x.orelse)
            return Value(
                f"tl.where({bare(condition.text)}, {bare(a.text)}, {bare(b.text)})", condition.span | a.span | b.span
            )
        if not condition.text.isidentifier():
            condition = self.assign("v", condition)
        branches = []
        for x_, text in ((x.then, condition.text), (x.orelse, f"~{condition.text}")):
            if self.safe(x_):
                branches.append(self.data(x_))
                continue
            on = Value(text, condition.span)
            if active is not None:
                on = Value(f"{active.text} & {text}", active.span | on.span)
            branches.append(self.data(x_, on if on.text.isidentifier() else self.assign("on", on)))
        a, b = branches
        return Value(f"tl.where({condition.text}, {bare(a.text)}, {bare(b.text)})", condition.span | a.span | b.span)

    # ---- memory ----

    def _checked(self, x: Checked, active: Value | None) -> Value:
        index = self.data(x.index, active)
        if not index.text.isidentifier():
            index = self.assign("at", index)
        extent = self.frame.dim(x.extent)
        valid = self.assign("valid", Value(f"({index.text} >= -{extent}) & ({index.text} < {extent})", index.span))
        self._valid[(x, active)] = valid
        more = self._mask(index.span, active, x.index)
        span = index.span | more.span
        wrong = " & ".join(filter(None, [f"~{valid.text}", more.text]))
        number = self.frame.checks.index(x.where)
        self.w.line(f"{self.helper('report')}(failures, {number}, {wrong}, {index.text}, {extent})")
        moved = f"tl.where({index.text} < 0, {index.text} + {extent}, {index.text})"
        if self.frame.index != "i64":
            moved += ".to(tl.int32)"
        return self.assign("at", Value(moved, index.span if span else 0))

    def _mask(self, span: int, active: Value | None, *index: Scalar) -> Value:
        """What has to hold for an element to be read at these indices: in the tile, active, with indices in range."""
        valid = [self._valid[(c, active)] for i in index for c in walk(i) if isinstance(c, Checked)]
        texts = [v.text for v in dict.fromkeys(valid)]
        for v in valid:
            span |= v.span
        if active is not None:
            texts.insert(0, active.text)
            span |= active.span
        return Value(" & ".join([*self.tile.mask(span), *texts]), span)

    def _read(self, x: Read, active: Value | None) -> Value:
        if x.tensor in self.values:
            return self.values[x.tensor]
        t = self.frame.tensors[x.tensor]
        at = self._offset(t, x.index, active)
        mask = self._mask(at.span, active, *x.index)
        if mask.span & ~at.span:
            at = Value(f"{at.text} + tl.zeros({self.tile.shape()}, tl.int32)", self.tile.full())
            mask = self._mask(at.span, active, *x.index)
        more = f", mask={mask.text}, other=0" if mask.text else ""
        text = f"tl.load({t.pointer} + {at.text}{more})"
        if STORAGE[t.dtype] in ("fp16", "bf16"):
            text += ".to(tl.float32)"
        elif t.dtype == "bool":
            text += " != 0"
        elif t.dtype in STORED_INTEGERS:
            text += ".to(tl.int64)"
        # no other names begin like these
        return self.assign(f"r_{t.pointer.removeprefix('t_')}_", Value(text, at.span))

    def store(self, t: LoopTensor, index: Sequence[Scalar], value: Value) -> None:
        """Print the store of a value to the elements at an index that the tile writes."""
        at = self._offset(t, index, None)
        masks = self.tile.mask(at.span)
        more = f", mask={' & '.join(masks)}" if masks else ""
        stored = "tl.int8" if t.dtype == "bool" else VALUES[t.dtype] if t.dtype in STORED_INTEGERS else ""
        text = f"{parenthesized(value.text)}.to({stored})" if stored else bare(value.text)
        self.w.line(f"tl.store({t.pointer} + {at.text}, {text}{more})")

    def _offset(self, t: LoopTensor, index: Sequence[Scalar], active: Value | None) -> Value:
        """The offset of an element in a tensor."""
        found = offset(index, t.strides)
        terms: list[str] = []
        span = 0
        if found is None:
            for i, stride in zip(index, t.strides, strict=True):
                v = self.data(i, active)
                span |= v.span
                terms.append(times(v.text, self.frame.dim(stride)))
            return Value(" + ".join(terms) or "0", span)
        for atom, c in found.terms.items():
            if isinstance(atom, Loop) and self.loops[atom.name] is None:
                continue
            v = self.value(atom, active)
            span |= v.span
            terms.append(times(v.text, self.frame.dim(c)))
        text = " + ".join(terms)
        if text and found.const.is_Integer and found.const < 0:
            return Value(f"{text} - {-found.const}", span)
        if found.const != 0 or not terms:
            text = " + ".join([*terms, self.frame.dim(found.const)])
        return Value(text, span)

    # ---- scopes ----

    def invariants(self, body: Scalar, loops: set[str]) -> list[Scalar]:
        """The largest subexpressions that do not depend on these loops and are evaluated whatever is chosen."""
        found: dict[Scalar, None] = {}
        seen: set[Scalar] = set()
        stack = [body]
        while stack:
            n = stack.pop()
            if n in seen:
                continue
            seen.add(n)
            if not loops_of(n) & loops:
                if n.operands and not is_index(n):
                    found[n] = None
                continue
            if isinstance(n, Read):
                # sums of indices are put together with the loops'
                stack += [i for i in n.index if not is_index(i)]
            else:
                stack += [n.condition] if isinstance(n, Select) and not self.safe(n) else n.operands
        return list(found)
