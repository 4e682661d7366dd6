"""Loop programs on CUDA devices: Triton code of the operators that are not muGraphs, and kernels that run it."""
