"""Inspection and loading of published model directories."""
