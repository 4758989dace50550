"""Checks and inspection of models before they are published or loaded."""
