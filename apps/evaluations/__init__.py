"""Evaluations: models answer the questions of rows, and are compared with the expected answers."""
