"""Models in the store: how they are checked before they are published."""
