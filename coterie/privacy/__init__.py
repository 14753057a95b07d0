"""Differential privacy: the accountant, the budget of a run, and the noise of clients and server."""
