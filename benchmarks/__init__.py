"""What is measured, against what, and the figures."""
