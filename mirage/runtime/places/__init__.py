"""Where the tensors of a program are: in main memory, or on a CUDA device."""
