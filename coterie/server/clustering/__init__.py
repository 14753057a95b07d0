"""Clustering of the clients' solutions: algorithms, choice of the number of clusters, and measures of separation."""
