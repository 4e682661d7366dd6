"""Loop programs as C for CPUs: shape-generic, vectorized along the innermost loop, on the thread pool."""
