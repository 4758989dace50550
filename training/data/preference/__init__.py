"""Rows with a good and a bad answer to the same prompt, or with one answer and a verdict on it."""
