"""Parts of a model's passes that take fewer operations here than in the libraries."""
