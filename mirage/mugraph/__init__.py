"""muGraphs: one structure for kernel, block and thread graphs (paper, section 2)."""
