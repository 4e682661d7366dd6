"""Drawings as SVG: boxes, arrows, layered layout; what graphs of all levels share."""
