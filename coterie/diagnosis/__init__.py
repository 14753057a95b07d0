"""Diagnosis of a federation before training: whether clients differ, in what, in which groups, and what to do.

The package is called `diagnosis`, since `coterie.diagnose` is the function.
"""
