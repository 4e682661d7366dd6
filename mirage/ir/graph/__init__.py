"""The graph IR: modules of functions over tensors, shapes and tuples (Relax, section 3)."""
