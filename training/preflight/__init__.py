"""Checks before a run starts: task, weights, resources, memory and disk space."""
