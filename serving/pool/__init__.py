"""The models that a replica has in memory: loaded on demand, leased, evicted."""
