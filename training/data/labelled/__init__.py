"""Rows with labels."""
