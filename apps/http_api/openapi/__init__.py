"""The description `/openapi.json`."""
