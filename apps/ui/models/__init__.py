"""The page "Models"."""
