"""From rows in any supported shape to tokens on disk, checked wholly before anything starts."""
