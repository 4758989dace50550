"""Requests and responses in OpenAI's format."""
