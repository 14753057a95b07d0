"""Differential privacy: accountant, noise, and the mechanisms of clients and server."""
