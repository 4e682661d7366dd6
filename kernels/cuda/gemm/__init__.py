"""CUTLASS as a library of predefined operators: matrix products with an epilogue that cuBLASLt lacks."""
