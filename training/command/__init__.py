"""Signals and output of `python -m training`."""
