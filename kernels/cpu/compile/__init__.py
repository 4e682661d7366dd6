"""Source to machine code on the CPU."""
