"""The model store: published models, aliases, their checks and their import."""
