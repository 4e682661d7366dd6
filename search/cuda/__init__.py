"""The choice among verified graphs for a CUDA device: by its model, with CUTLASS kernels, by measurement."""
