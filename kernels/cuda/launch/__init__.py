"""Compiled muGraphs on a CUDA device: arrays, calls, CUDA graphs, timing."""
