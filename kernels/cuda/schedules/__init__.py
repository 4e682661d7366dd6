"""Schedules of muGraphs on CUDA devices: what they are, candidates, and their order by the cost model."""
