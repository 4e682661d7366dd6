"""The graph compiler: passes over graph modules, and the kernels that they call."""
