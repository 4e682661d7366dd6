"""What a schedule costs on a CUDA device."""
