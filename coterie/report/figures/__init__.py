"""Drawings as inline SVG, made from numbers alone: one file a figure, no library, nothing random."""
