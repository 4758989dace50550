"""Runs as Ray jobs of the application's cluster."""
