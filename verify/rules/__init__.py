"""Named rewrite rules of tensor programs over axes, equality saturation under them, and the chains that it proves."""
