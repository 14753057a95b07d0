"""A complete Flower federation on this machine, for trials and tests: SuperLink, SuperNodes, TLS and keys.

This module imports nothing, because `certificates`, `control` and `bundle` need an extra of flwr.
"""
