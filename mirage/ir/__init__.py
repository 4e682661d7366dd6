"""Dims, tensor types, operators and programs: the language in which everything else is written."""
