"""Reproducible federations with known groups, and real data sets as federations."""
