"""The benchmark of whole programs on the CPU."""
