"""Partial evaluation: what a program computes of data that is known is computed before it runs (Relay, section 4.3)."""
