"""Helpers for the machine, independent of Tuneserve."""
