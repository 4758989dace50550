"""The page "Fine-tune"."""
