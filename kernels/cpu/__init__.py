"""The CPU target: the C headers that generated kernels include, the C toolchain and the thread pool."""
