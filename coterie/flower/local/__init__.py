"""A whole Flower federation on this machine: SuperLink, SuperNodes, TLS, keys, and everything ended again.

For trying out and for tests. Nothing is imported here: `certificates`, `control` and `bundle` need flwr's extra.
"""
