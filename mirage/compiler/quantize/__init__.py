"""Quantization in three steps (Relay, section 4.2): annotate, calibrate, realize."""
