"""The whole programs that are measured, and small ones for tests."""
