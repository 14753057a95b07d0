"""Many runs: comparisons, sweeps, reproductions and the processes they run in."""
