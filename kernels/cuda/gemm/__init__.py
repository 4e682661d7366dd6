"""Matrix products with an epilogue as CUTLASS kernels."""
