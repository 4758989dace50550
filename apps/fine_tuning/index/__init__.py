"""Indexes of runs, events, metrics and sizes, so that lists do not read every file."""
