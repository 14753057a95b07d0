"""Clusterings of the clients' solutions, the number of clusters, and how far to trust them."""
