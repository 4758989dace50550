"""ASGI middleware of the HTTP API: authentication, body limits and flow control."""
