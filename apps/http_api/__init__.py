"""The HTTP API: its application, request bodies, streams, uploads and clients of deployments."""
