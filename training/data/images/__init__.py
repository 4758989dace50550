"""Rows of images."""
