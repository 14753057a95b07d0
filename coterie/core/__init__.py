"""Values that travel between the rooms: ids, keys, shards, clusters, regroups, messages. No policy."""
