"""The cost model of CPU kernels, its coefficients, and the limits of the machine."""
