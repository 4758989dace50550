"""The page "Cluster"."""
