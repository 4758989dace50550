"""What the routes of the HTTP API share: request bodies, response schemas, the API description."""
