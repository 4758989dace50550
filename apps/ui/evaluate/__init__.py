"""The page "Evaluate"."""
