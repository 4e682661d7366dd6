"""The benchmarks of CPU kernels."""
