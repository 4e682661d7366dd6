"""The benchmarks of the search and of the verifier."""
