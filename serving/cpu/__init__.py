"""Kernels and settings for generation on a CPU."""
