"""Adapters: what is trained in place of all weights, and its names in files."""
