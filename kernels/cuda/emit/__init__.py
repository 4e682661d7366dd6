"""MuGraphs and their schedules as Triton source."""
