"""Kernels: what prints, compiles, runs and times them, one subpackage per target."""
