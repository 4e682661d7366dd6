"""The search for muGraphs: abstract expressions and pruning, generation, optimization."""
