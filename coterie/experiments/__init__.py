"""Experiments of many runs: comparisons, sweeps and reproductions, in worker processes."""
