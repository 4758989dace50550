"""Helpers for the machine, which know nothing of Tuneserve."""
