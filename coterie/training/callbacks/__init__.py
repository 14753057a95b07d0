"""Callbacks: code that runs before the first round, after every round and at the end of a training run."""
