"""Memory planning (Relax, sections 3.3, 4.3 and 4.4): which tensors share memory, from lifetimes and symbolic sizes alone."""
