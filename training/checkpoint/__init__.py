"""Sharded checkpoints: their format, writing and restoring."""
