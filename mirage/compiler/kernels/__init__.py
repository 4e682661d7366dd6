"""Kernels of graph modules that run a subprogram of the search's operators: muGraphs, searched for or built directly."""
