"""Parts of a model's passes that are faster here than in the libraries, with their gradients."""
