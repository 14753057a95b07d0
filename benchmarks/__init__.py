"""Measurements of Coterie itself, outside the wheel: scripts that print figures, and the scoreboard of all methods."""
