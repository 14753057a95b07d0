"""Core values and protocols shared by all packages: shards, random keys, clusters, regroups, messages, server state."""
