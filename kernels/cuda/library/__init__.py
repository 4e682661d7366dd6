"""Operators and whole programs by libraries: calls of cuBLASLt and CuPy."""
