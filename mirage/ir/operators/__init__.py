"""The built-in operators; importing this package registers them."""

from mirage.ir.operators import composite, contraction, elementwise, movement

__all__ = ["composite", "contraction", "elementwise", "movement"]
