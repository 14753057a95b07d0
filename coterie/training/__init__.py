"""Training runs: plan, initialisation, loop, callbacks, run folders, and results."""
