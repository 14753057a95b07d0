"""Diagnosis of a federation before training: tests of differences, groups of clients, and a recommended method.

The package is called `diagnosis` because `coterie.diagnose` is the function.
"""
