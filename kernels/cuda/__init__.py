"""The CUDA backend: muGraphs printed to Triton, compiled ahead of time, launched through CuPy."""
