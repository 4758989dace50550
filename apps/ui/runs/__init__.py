"""The page "Runs"."""
