"""Parts of a model's passes that are computed faster or more exactly than by the libraries."""
