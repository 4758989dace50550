"""Classification of texts by published models."""
