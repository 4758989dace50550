"""Checks before and during a run: task, weights, memory and disk space."""
