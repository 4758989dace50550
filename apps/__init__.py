"""The HTTP API, the web page, the fine-tuning queue and the command line.

This package composes `training` and `serving`, and contains no model code.
"""
