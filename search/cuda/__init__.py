"""The choice among verified graphs for a CUDA device: by its model, by measurement."""
