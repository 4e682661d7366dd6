"""What of each operator is quantized: a table of one rule per operator, which users overload."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from mirage.errors import QuantizationError
from mirage.ir.annotations import Annotation
from mirage.ir.graph.nodes import Constant, OpCall
from mirage.ir.operator import get_operator
from mirage.ir.types import TensorType


class Role(Enum):
    """What an operand is: an activation has one scale, that calibration chooses; a weight is known, and may have many."""

    ACTIVATION = "activation"
    WEIGHT = "weight"


@dataclass(frozen=True)
class Stays:
    """The operator stays float, for a reason."""

    reason: str


#: what a rule gives: a role per operand, None for one that is not quantized; or why all of them stay
Roles = Sequence[Role | None] | Stays
#: a rule: the roles of a call's operands
QuantizationRule = Callable[[OpCall], Roles]

_lock = threading.Lock()
_table: dict[str, QuantizationRule] = {}


def register_quantization(op: str, rule: QuantizationRule | None) -> None:
    """Quantize the operands of an operator as a rule says from now on, in place of the rule that there was; None takes it away.

    `rule(call)` gets the operator's call (`call.args` are its operands, with their `annotation`; `dict(call.attrs)` its
    attributes), and gives a `Role` per operand, None for one that stays as it is; or `Stays(reason)`. What quantization
    realizes as whole numbers is a product with a constant matrix of weights, or a convolution with constant ones; other roles are
    simulated: their operands are rounded as integers would be, and computed in float32.

    Raises UnknownOperator for an operator that there is not.
    Source: Relay, section 4.2 (annotation rules).
    """
    get_operator(op)
    with _lock:
        if rule is None:
            _table.pop(op, None)
        else:
            _table[op] = rule


def quantization_rules() -> Mapping[str, QuantizationRule]:
    """The table as it is now."""
    with _lock:
        return dict(_table)


def roles_of(call: OpCall, table: Mapping[str, QuantizationRule]) -> Roles:
    """What the table says of a call; raises QuantizationError for a rule that gives no roles, or a constant's to what is none."""
    rule = table.get(call.op)
    if rule is None:
        return Stays("it has no rule")
    found = rule(call)
    if isinstance(found, Stays):
        return found
    if len(found) != len(call.args) or not all(r is None or isinstance(r, Role) for r in found):
        raise QuantizationError(
            f"the rule of {call.op} gives {found!r} for {len(call.args)} operands; it gives a Role or None for each, or Stays"
        )
    for i, (role, operand) in enumerate(zip(found, call.args, strict=True)):
        if role is not None and (role is Role.WEIGHT) != isinstance(operand, Constant):
            known, right = ("known", Role.WEIGHT) if role is Role.ACTIVATION else ("not known", Role.ACTIVATION)
            raise QuantizationError(
                f"the rule of {call.op} gives {role} for operand {i}, whose contents are {known}; give {right}, or None"
            )
    return found


def _is_float(a: Annotation) -> bool:
    return isinstance(a, TensorType) and a.dtype == "float32"


def _matmul(call: OpCall) -> Roles:
    x, w = call.args
    if not (_is_float(x.annotation) and _is_float(w.annotation)):
        return Stays("it is not of float32")
    if isinstance(x, Constant):
        return Stays("its weight is on the left")
    if not isinstance(w, Constant):
        return Stays("both operands are activations")
    if isinstance(w.annotation, TensorType) and w.annotation.rank != 2:
        return Stays("its weight is no matrix")
    return Role.ACTIVATION, Role.WEIGHT


def _convolution(call: OpCall) -> Roles:
    x, w = call.args
    if not (_is_float(x.annotation) and _is_float(w.annotation)):
        return Stays("it is not of float32")
    if isinstance(x, Constant) or not isinstance(w, Constant):
        return Stays("its weight is not known")
    return Role.ACTIVATION, Role.WEIGHT


register_quantization("matmul", _matmul)
register_quantization("convolution", _convolution)
