"""Validation of training rows before a run is queued."""
