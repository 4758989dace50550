"""A client of the HTTP API."""
