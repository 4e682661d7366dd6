"""Patterns of operators, and the library functions that compute what they match (Relax, section 4.6)."""

from mirage.compiler.patterns import attention as _attention  # noqa: F401  (registers those of attention)
from mirage.compiler.patterns import builtin as _builtin  # noqa: F401  (registers the built-in pairs)
from mirage.compiler.patterns import convolutions as _convolutions  # noqa: F401  (registers those of convolutions)
from mirage.compiler.patterns import quantized as _quantized  # noqa: F401  (registers those of quantized products)
from mirage.compiler.patterns.language import Match, Pattern, number, one_of, op, optional, value, view
from mirage.compiler.patterns.registry import Rule, register_pattern, rules

__all__ = [
    "Match",
    "Pattern",
    "Rule",
    "number",
    "one_of",
    "op",
    "optional",
    "register_pattern",
    "rules",
    "value",
    "view",
]
