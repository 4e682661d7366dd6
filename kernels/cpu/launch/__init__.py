"""Calls of compiled kernels: arrays, packed constants, the thread pool, the choice of a version."""
