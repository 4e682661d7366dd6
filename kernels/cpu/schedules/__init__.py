"""Schedules of CPU kernels: what they decide, and in which order they are tried."""
