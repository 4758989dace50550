"""Shared parts of the HTTP API: request bodies, response schemas, API description, readiness."""
