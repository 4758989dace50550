"""What surrounds each page: head and header of its document, the page "HTTP API", and 404."""
