"""A tensor superoptimizer: faster kernels, proved equivalent, for every shape."""
