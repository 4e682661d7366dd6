"""Kernels compiled ahead of time, without a GPU, and cached by content."""
