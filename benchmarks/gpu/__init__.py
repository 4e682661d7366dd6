"""The benchmarks of a GPU, and what can be checked without one."""
