"""Triton code run by Triton's interpreter on the processor."""
