"""Dims, tensor types, operators and programs: the language in which everything else is written.

The built-in operators are registered before any part of it is used.
"""

from mirage.ir import operators as operators
