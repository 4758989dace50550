"""Rows of uploaded files for clients: pages of them, and surveys of all."""
