"""What the machines of the cluster are used for."""
