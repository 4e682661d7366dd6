"""Answers of a superoptimization: what was found and verified, the results that can be called, their records."""
